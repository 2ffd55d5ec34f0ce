"""Every kind of bad row has one outcome: kept, rejected with its reason, or an error; strict makes each an error."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zoo
from hypothesis import given, settings
from hypothesis import strategies as st

from draftsmith.data.encode import Encoder
from draftsmith.data.mixture import PlacedRow
from draftsmith.data.prepare import prepare
from draftsmith.data.store import TokenStore
from draftsmith.data.template import ChatTemplate
from draftsmith.errors import DataError
from helpers import chat_row

GOOD = json.dumps(chat_row("Hi", "Hello.", "good")).encode()
USER, ANSWER = {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello."}
IDS = [5, 6, 7, 8]


def messages(*turns: dict[str, Any], **more: Any) -> bytes:
    return json.dumps({"messages": turns, **more}).encode()


def ids(**row: Any) -> bytes:
    return json.dumps({"input_ids": IDS, **row}).encode()


# Raw line -> reason of its rejection, or None where it is kept.
ROWS: dict[str, tuple[bytes, str | None]] = {
    "broken JSON": (GOOD[:-5], "not valid JSON"),
    "JSON nested without end": (b"[" * 100_000, "not valid JSON"),
    "not UTF-8": (GOOD.replace(b"Hello", b"Hell\xff"), "not UTF-8"),
    "half of a surrogate pair": (messages(USER, {**ANSWER, "content": "\ud800"}), "not UTF-8"),
    "only a user turn": (messages(USER), "no assistant turn"),
    "the assistant first": (messages(ANSWER, USER, ANSWER), "the assistant speaks first"),
    "roles that do not alternate": (messages(USER, USER, ANSWER), None),
    "two answers": (messages(USER, ANSWER, ANSWER), None),
    "a system turn in the middle": (messages(USER, ANSWER, {"role": "system", "content": "S"}, USER, ANSWER), None),
    "empty answer": (messages(USER, {**ANSWER, "content": ""}), "empty content"),
    "null answer": (messages(USER, {**ANSWER, "content": None}), "empty content"),
    "a list of text parts": (messages(USER, {**ANSWER, "content": [{"type": "text", "text": "Hello."}]}), None),
    "an image": (
        messages({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}, ANSWER),
        "content is not text",
    ),
    "tools as a list": (messages(USER, ANSWER, tools=[{"function": {"name": "f"}}]), None),
    "tools as JSON text": (messages(USER, ANSWER, tools='[{"function": {"name": "f"}}]'), None),
    "tools as broken JSON text": (messages(USER, ANSWER, tools="[{"), "tools are not valid JSON"),
    "tools that are no objects": (messages(USER, ANSWER, tools=[1]), "tools are not a list of objects"),
    "a role that is no text": (messages({"role": 3, "content": "Hi"}, ANSWER), "a message has no role"),
    "a template that raises": (
        messages({"role": "user", "content": "RAISE"}, ANSWER),
        "the chat template refuses the row",
    ),
    "200,000 tokens": (messages(USER, {**ANSWER, "content": "word " * 40_000}), None),
    "a question of 200,000 tokens": (
        messages({"role": "user", "content": "word " * 40_000}, ANSWER),
        "no supervised token left after truncation at 64",
    ),
    "ids and mask": (ids(loss_mask=[0, 0, 1, 1]), None),
    "ids and labels": (ids(labels=[-100, -100, 7, 8]), None),
    "shifted labels": (ids(labels=[-100, 7, 8, -100]), "labels are not the ids they stand at"),
    "ids out of range": (ids(input_ids=[5, 6, 7, 10**6], loss_mask=[0, 0, 1, 1]), "ids out of range"),
    "ids beyond 32 bits": (ids(input_ids=[5, 6, 7, 2**40], loss_mask=[0, 0, 1, 1]), "ids out of range"),
    "negative ids": (ids(input_ids=[5, 6, 7, -1], loss_mask=[0, 0, 1, 1]), "ids out of range"),
    "ids that are no numbers": (ids(input_ids=["5", "6"], loss_mask=[1, 1]), "not a list of whole numbers"),
    "ids that are fractions": (ids(input_ids=[5.5, 6.5], loss_mask=[1, 1]), "not a list of whole numbers"),
    "ids without a mask": (ids(), "input_ids without a mask"),
    "a mask of another length": (ids(loss_mask=[1, 1]), "input_ids and mask differ in length"),
    "a mask of zeros": (ids(loss_mask=[0, 0, 0, 0]), "no supervised token"),
    "a mask of weights": (ids(loss_mask=[0, 0, 2, 1]), "a mask holds more than 0 and 1"),
    "one supervised token": (ids(loss_mask=[0, 0, 0, 1]), "fewer than two supervised tokens in a row"),
    "no ids": (ids(input_ids=[], loss_mask=[]), "not a list of whole numbers"),
    "empty text": (b'{"text": " "}', "empty content"),
    "a number": (b"7", "not a JSON object"),
    "an empty object": (b"{}", "neither `messages` nor `conversations`"),
}
TEMPLATE = "{% if messages[0].content == 'RAISE' %}{{ raise_exception('no') }}{% endif %}" + zoo.CHATML
TOKENIZER = zoo.byte_tokenizer(TEMPLATE)


def stored(tmp_path: Path, *lines: bytes, **options: Any) -> TokenStore:
    source = tmp_path / "rows.jsonl"
    source.write_bytes(b"\n".join(lines) + b"\n")
    return prepare(source, tmp_path / "store", TOKENIZER, max_length=64, holdout=0.0, **options)


@pytest.mark.parametrize("name", ROWS)
def test_a_row_is_kept_or_rejected_with_its_reason_and_strict_names_its_line(name: str, tmp_path: Path) -> None:
    raw, reason = ROWS[name]
    if reason is None:
        store = stored(tmp_path, GOOD, raw, strict=True)
        assert (store.accounting.num_kept, store.accounting.num_rejected) == (2, 0)
        assert store.lengths.max() <= 64
        return
    store = stored(tmp_path, GOOD, raw)
    assert {known: (rows.count, rows.first.line) for known, rows in store.accounting.rejected.items()} == {
        reason: (1, 2)
    }
    assert store.ids == ["good"]
    with pytest.raises(DataError, match=r"rows\.jsonl, line 2: ") as error:
        prepare(tmp_path / "rows.jsonl", tmp_path / "other", TOKENIZER, max_length=64, holdout=0.0, strict=True)
    assert reason in str(error.value)
    assert not (tmp_path / "other").exists()


def test_broken_json_in_line_7_of_10_costs_that_line(tmp_path: Path) -> None:
    lines = [json.dumps(chat_row("Hi", f"Hello {i}.", str(i))).encode() for i in range(1, 11)]
    lines[6] = lines[6][:-4]
    store = stored(tmp_path, *lines)
    assert store.ids == [str(i) for i in range(1, 11) if i != 7]
    assert str(store.accounting.rejected["not valid JSON"].first).startswith("line 7: ")


def test_all_bad_rows_together_are_counted_and_nothing_is_lost(tmp_path: Path) -> None:
    store = stored(tmp_path, *(raw for raw, _ in ROWS.values()))
    accounting = store.accounting
    assert accounting.num_read == len(ROWS)
    assert accounting.num_kept == sum(reason is None for _, reason in ROWS.values())
    assert accounting.num_read == accounting.num_kept + accounting.num_rejected
    assert set(accounting.rejected) == {reason for _, reason in ROWS.values() if reason}


KEYS = (
    "messages conversations role from content value tools tool_calls function id name arguments text input_ids "
    "loss_mask labels instruction prompt type"
)
JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS.split()), inner, max_size=5),
    max_leaves=20,
)
ENCODER = Encoder(ChatTemplate(TOKENIZER), 64, True, ("rows",))


@settings(deadline=None, max_examples=150)
@given(rows=st.lists(JUNK | JUNK.map(lambda junk: {"messages": [USER, {**ANSWER, "tool_calls": junk}]}), max_size=4))
def test_whatever_a_row_holds_it_is_counted_and_costs_no_other_row(rows: list[Any]) -> None:
    raw = [GOOD, *(json.dumps(row).encode() for row in rows), GOOD]
    encoded = ENCODER([PlacedRow(0, line, line_bytes) for line, line_bytes in enumerate(raw, start=1)])
    accounting = encoded.accounting
    assert accounting.num_read == len(raw) == accounting.num_kept + accounting.num_rejected
    assert (encoded.ids[0], encoded.ids[-1]) == ("good", "good")
    assert np.sum(encoded.lengths) == len(encoded.input_ids) == len(encoded.loss_mask)
