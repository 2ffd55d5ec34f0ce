"""`inspect` shows what a store will teach, and refuses what would train a useless drafter with healthy curves."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from zoo import CHATML, GEMMA, GLM, HARMONY, LLAMA3, MISTRAL, PHI, R1, TRIMMING, byte_tokenizer, chat

from draftsmith.data import ChatTemplate, Inspection, TokenStore, check_store, inspect_store, inspection_page, prepare
from draftsmith.data.inspect import segments_of
from draftsmith.data.store import seal
from draftsmith.errors import DataError
from draftsmith.files import sha256_file
from draftsmith.records import Conversation
from helpers import CONFIGS, chat_row, draftsmith, write_jsonl

SETTINGS: dict[str, Any] = {"max_length": 256, "holdout": 0.0}


def conversations(number: int = 6) -> list[Conversation]:
    return [chat(f"Question {i}?", f"Answer {i}.", "Again?", "Yes.", name=f"c{i}") for i in range(number)]


def look(store: TokenStore, tokenizer: Any | None, **settings: Any) -> Inspection:
    template = None if tokenizer is None else ChatTemplate(tokenizer)
    return inspect_store(store, template, source="rows", edges=[64, 256], **settings)


def change(store: TokenStore, name: str, sample: int, place: slice, value: Any) -> TokenStore:
    """The store with a stretch of one sample's tokens or mask overwritten."""
    kind = np.int32 if name == "tokens.bin" else np.uint8
    file = np.memmap(store.path / name, dtype=kind, mode="r+")
    start = int(np.concatenate([[0], np.cumsum(store.lengths)])[sample])
    stop = int(store.lengths[sample])
    file[start : start + stop][place] = value
    file.flush()
    meta = json.loads((store.path / "meta.json").read_text(encoding="utf-8"))
    meta["file_sha256"][name] = sha256_file(store.path / name)  # as if it had been prepared so
    (store.path / "meta.json").write_text(json.dumps(seal(meta)), encoding="utf-8")
    return TokenStore.open(store.path)


@pytest.fixture
def chatml() -> Any:
    return byte_tokenizer(CHATML)


@pytest.fixture
def store(chatml: Any, tmp_path: Path) -> TokenStore:
    return prepare(conversations(), tmp_path / "store", chatml, **SETTINGS)


def test_figures_are_those_of_a_slow_count(store: TokenStore, chatml: Any) -> None:
    found = look(store, chatml)
    samples = [store.sample(i) for i in range(len(store))]
    assert found.num_tokens == sum(len(s.input_ids) for s in samples)
    assert found.num_supervised == sum(int(s.loss_mask.sum()) for s in samples)
    anchors = sum(bool(s.loss_mask[a] and s.loss_mask[a + 1]) for s in samples for a in range(len(s.loss_mask) - 1))
    assert found.num_anchors == anchors == sum(bucket.num_anchors for bucket in found.buckets)
    assert sum(bucket.num_samples for bucket in found.buckets) == len(store)
    assert sum(entry.num_samples for entry in found.histogram) == len(store)
    assert (found.problems, found.num_duplicates, found.num_cut_answers) == ((), 0, 0)


@pytest.mark.parametrize("template", [CHATML, LLAMA3, GEMMA, MISTRAL, PHI, GLM, HARMONY, R1, TRIMMING])
def test_what_prepare_makes_is_never_refused(template: str, tmp_path: Path) -> None:
    tokenizer = byte_tokenizer(template)
    made = prepare(conversations(), tmp_path / "store", tokenizer, **SETTINGS)
    found = look(made, tokenizer)
    assert found.problems == ()
    check_store(made, tokenizer)


def test_segments_put_together_are_the_decoded_sample_and_the_marked_ones_are_the_answers(
    store: TokenStore, chatml: Any
) -> None:
    segments = segments_of(chatml, store.sample(0))
    assert "".join(text for text, _ in segments) == chatml.decode(store.sample(0).input_ids.tolist())
    assert [text for text, supervised in segments if supervised] == ["Answer 0.<|im_end|>", "Yes.<|im_end|>"]


def test_a_mask_that_matches_nothing_is_refused(store: TokenStore, chatml: Any) -> None:
    """A whole run with loss and accuracy at 0: https://github.com/sgl-project/SpecForge/issues/392"""
    broken = change(store, "mask.bin", 2, slice(None), 0)
    (problem,) = look(broken, chatml).problems
    assert (problem.kind, problem.num_samples) == ("zero mask", 1)
    assert "'c2'" in problem.detail
    with pytest.raises(DataError, match=r"1 samples have no place to train a block.*'c2'"):
        check_store(broken, chatml)


def test_a_mask_without_the_end_of_turn_is_refused(store: TokenStore, chatml: Any) -> None:
    """A drafter that never sees the end of a turn never learns to stop."""
    sample = store.sample(1)
    ends = np.flatnonzero(sample.input_ids == chatml.convert_tokens_to_ids("<|im_end|>"))
    assert sample.loss_mask[ends[-1]]
    broken = change(store, "mask.bin", 1, slice(int(ends[-1]), int(ends[-1]) + 1), 0)
    (problem,) = look(broken, chatml).problems
    assert (problem.kind, problem.num_samples) == ("no end-of-turn token", 1)
    with pytest.raises(DataError, match="end-of-turn token is not supervised"):
        check_store(broken, chatml)


def test_answers_cut_at_the_longest_length_need_no_end(chatml: Any, tmp_path: Path) -> None:
    made = prepare([chat("?", "long " * 50)], tmp_path / "store", chatml, max_length=100, holdout=0.0)
    found = look(made, chatml)
    assert (found.num_truncated, found.problems) == (1, ())


def test_answers_that_were_cut_are_counted_where_they_are_wanted(chatml: Any, tmp_path: Path) -> None:
    rows = [*conversations(3), Conversation("cut", chat("?", "and then").messages, truncated=True)]
    made = prepare(rows, tmp_path / "store", chatml, truncated="cut", **SETTINGS)
    found = look(made, chatml)
    assert (found.num_cut_answers, found.problems) == (1, ())
    assert "1 answers were cut at a limit" in found.notes[0]


def rendered(tokenizer: Any, *texts: str) -> str:
    return str(tokenizer.apply_chat_template(list(chat(*texts).messages), tokenize=False))


def tokenised_elsewhere(tokenizer: Any, texts: Sequence[str], path: Path) -> Path:
    """Rows of ids, all supervised but the first three, as another program may have made them: prepare takes them."""
    rows = []
    for number, text in enumerate(texts):
        ids = list(tokenizer(text, add_special_tokens=False)["input_ids"])
        end = max(place for place, token in enumerate(ids) if token in tokenizer.added_tokens_decoder)
        ids = ids[: end + 1]
        rows.append({"id": f"c{number}", "input_ids": ids, "loss_mask": [0] * 3 + [1] * (len(ids) - 3)})
    return write_jsonl(path, rows)


@pytest.mark.parametrize("template", [CHATML, LLAMA3, GEMMA, MISTRAL, PHI, HARMONY])
def test_a_template_that_was_applied_twice_is_refused(template: str, tmp_path: Path) -> None:
    tokenizer = byte_tokenizer(template)
    inner = rendered(tokenizer, "Question?", "Answer.")
    texts = [rendered(tokenizer, f"{inner}{i}", "Yes.") for i in range(4)]
    source = tokenised_elsewhere(tokenizer, texts, tmp_path / "rows.jsonl")
    made = prepare(source, tmp_path / "store", tokenizer, **SETTINGS)
    (problem,) = look(made, tokenizer).problems
    assert (problem.kind, problem.num_samples) == ("template applied twice", 4)
    with pytest.raises(DataError, match="applied twice"):
        check_store(made, tokenizer)


def test_preformatted_text_in_messages_is_refused_with_its_lines(tmp_path: Path) -> None:
    inner = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello<|im_end|>\n"
    source = write_jsonl(tmp_path / "rows.jsonl", [chat_row(inner, "Yes.", f"c{i}") for i in range(3)])
    shown = draftsmith("inspect", source, "--target", "tiny-random")
    assert shown.code == 2
    assert "3 x the template is applied twice (first: line 1" in shown.err


def test_answers_that_are_closed_twice_are_refused(chatml: Any, tmp_path: Path) -> None:
    texts = [rendered(chatml, "Question?", f"Answer {i}.<|im_end|>") for i in range(4)]
    made = prepare(tokenised_elsewhere(chatml, texts, tmp_path / "rows.jsonl"), tmp_path / "store", chatml, **SETTINGS)
    (problem,) = look(made, chatml).problems
    assert "closed twice" in problem.detail


def test_a_begin_token_that_stands_twice_is_refused(tmp_path: Path) -> None:
    tokenizer = byte_tokenizer(LLAMA3)
    made = prepare(conversations(), tmp_path / "store", tokenizer, **SETTINGS)
    for sample in range(len(made)):
        made = change(made, "tokens.bin", sample, slice(0, 2), tokenizer.bos_token_id)
    (problem,) = look(made, tokenizer).problems
    assert "begin-of-text token stands twice" in problem.detail


def test_one_row_that_quotes_markers_among_many_is_noted_and_not_refused(chatml: Any, tmp_path: Path) -> None:
    rows = [*conversations(150), chat("<|im_start|>user\nWhat does this do?", "It opens a turn.", name="quoting")]
    made = prepare(rows, tmp_path / "store", chatml, **SETTINGS)
    found = look(made, chatml)
    assert found.problems == ()
    assert "'quoting'" in found.notes[0]
    check_store(made, chatml)


def test_another_tokenizer_or_template_is_refused(store: TokenStore, chatml: Any) -> None:
    """Stale tokens after a model's template changes: https://github.com/sgl-project/SpecForge/pull/743"""
    other = byte_tokenizer(GEMMA)
    (problem,) = look(store, other).problems
    assert problem.kind == "another tokenizer"
    changed = byte_tokenizer(CHATML)
    changed.chat_template = CHATML + " "
    (problem,) = look(store, changed).problems
    assert problem.kind == "another chat template"
    assert all(not row.segments for row in look(store, changed).rows)
    with pytest.raises(DataError, match="another chat template"):
        check_store(store, changed)


def test_duplicates_and_rows_on_both_sides_of_the_split_are_counted(chatml: Any, tmp_path: Path) -> None:
    """One row in both train and validation: https://github.com/vllm-project/speculators/pull/868"""
    rows = [chat("Question?", "Answer.", name=f"c{i}") for i in range(40)]
    made = prepare(rows, tmp_path / "store", chatml, max_length=256, holdout=0.3)
    found = look(made, chatml)
    assert found.num_duplicates == 39
    assert found.num_leaked == found.num_holdout > 0


def test_without_a_target_figures_are_shown_and_the_report_says_what_is_missing(store: TokenStore) -> None:
    found = look(store, None)
    assert found.num_supervised > 0
    assert "give --target" in found.notes[0]
    assert all(not row.segments for row in found.rows)


def test_the_page_loads_nothing_and_escapes_what_comes_from_the_data(chatml: Any, tmp_path: Path) -> None:
    rows = [chat("<script>alert(1)</script>", "<b>&\x1b[31m</b>", name="<img src=x onerror=alert(1)>")]
    made = prepare(rows, tmp_path / "store", chatml, **SETTINGS)
    page = inspection_page(look(made, chatml))
    assert "<script" not in page
    assert "<img" not in page
    assert "&lt;script&gt;" in page
    assert "\x1b" not in page
    assert "http" not in page
    assert "prefers-color-scheme: dark" in page
    assert "<mark>&lt;b&gt;&amp;" in page


def test_the_command_shows_a_store_and_a_file_alike(conversations: Path, tmp_path: Path) -> None:
    made = draftsmith("prepare", conversations, tmp_path / "store", "--target", "tiny-random", "--holdout", "0")
    assert made.code == 0, made.err
    shown = draftsmith("inspect", tmp_path / "store", "--target", "tiny-random", "--html", tmp_path / "page.html")
    assert shown.code == 0, shown.err
    for words in ("rows to read, ⟦supervised⟧", "valid anchors", "duplicates", "longest:", "<|im_end|>⟧"):
        assert words in shown.out
    assert "\x1b" not in shown.out
    assert (tmp_path / "page.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    figures = []
    for arguments in ((tmp_path / "store",), (conversations, "--target", "tiny-random")):
        done = draftsmith("inspect", *arguments, "--json")
        assert done.code == 0, done.err
        known = json.loads(done.out)
        figures.append({key: value for key, value in known.items() if key != "source"})
    assert figures[0] == figures[1]


def test_the_command_ends_with_exit_code_2_and_still_shows_the_report(conversations: Path, tmp_path: Path) -> None:
    draftsmith("prepare", conversations, tmp_path / "store", "--target", "tiny-random", "--holdout", "0")
    change(TokenStore.open(tmp_path / "store"), "mask.bin", 0, slice(None), 0)
    shown = draftsmith("inspect", tmp_path / "store", "--target", "tiny-random")
    assert shown.code == 2
    assert "refused, zero mask" in shown.out
    assert "zero mask" in shown.err
    shown = draftsmith("inspect", tmp_path / "store", "--target", "tiny-random", "--json")
    assert shown.code == 2
    assert json.loads(shown.out)["problems"][0]["kind"] == "zero mask"


def test_rejected_rows_are_shown_with_their_lines(tmp_path: Path) -> None:
    source = write_jsonl(
        tmp_path / "rows.jsonl", [chat_row("Hi", "Hello", "a"), {"text": 1}, chat_row("Hi", None, "b")]
    )
    shown = draftsmith("inspect", source, "--target", "tiny-random")
    assert shown.code == 0, shown.err
    assert "3 read = 1 kept + 2 rejected" in shown.out
    assert "line 2" in shown.out
    assert "line 3" in shown.out


def test_every_place_of_a_reason_is_named_up_to_twenty_and_the_rest_are_counted(tmp_path: Path) -> None:
    first = write_jsonl(tmp_path / "a.jsonl", [chat_row("Hi", "Hello", "a"), *([{"text": 1}] * 3)])
    second = write_jsonl(tmp_path / "b.jsonl", [chat_row("Hi", "Hello", "b"), *([{"text": 1}] * 30)])
    prepared = draftsmith("prepare", first, second, tmp_path / "store", "--target", "tiny-random", "--holdout", "0")
    assert prepared.code == 0, prepared.err
    page = tmp_path / "page.html"
    shown = draftsmith("inspect", tmp_path / "store", "--target", "tiny-random", "--html", page)
    assert shown.code == 0, shown.err
    lines = ", ".join(map(str, range(2, 19)))
    words = f"33 x neither `messages` nor `conversations` (a.jsonl, lines 2, 3, 4; b.jsonl, lines {lines}; and 13 more"
    assert words in shown.out
    assert words in page.read_text(encoding="utf-8")
    as_json = draftsmith("inspect", tmp_path / "store", "--target", "tiny-random", "--json")
    (entry,) = json.loads(as_json.out)["accounting"]["rejected"]
    assert entry["count"] == 33
    places = [(place["source"], place["line"]) for place in entry["places"]]
    assert places == [*(("a.jsonl", i) for i in (2, 3, 4)), *(("b.jsonl", i) for i in range(2, 19))]


def test_rows_that_a_limit_left_unread_are_told(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "rows.jsonl", [chat_row("Hi", "Hello", str(i)) for i in range(5)])
    for limit, told in ((3, True), (6, False)):
        shown = draftsmith("inspect", source, "--target", "tiny-random", "--limit", limit)
        assert shown.code == 0, shown.err
        assert ("only the first 3 rows were read" in shown.out) == told


def test_a_damaged_store_is_named(conversations: Path, tmp_path: Path) -> None:
    draftsmith("prepare", conversations, tmp_path / "store", "--target", "tiny-random", "--holdout", "0")
    file = tmp_path / "store" / "mask.bin"
    file.write_bytes(file.read_bytes()[:-1] + b"\x07")
    shown = draftsmith("inspect", tmp_path / "store", "--target", "tiny-random")
    assert shown.code == 2
    assert "mask.bin has other content than was written" in shown.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(["rows.jsonl"], "--target"), (["nowhere", "--target", "tiny-random"], "nowhere"), (["."], "--target")],
)
def test_what_cannot_be_looked_at_is_named(
    arguments: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_jsonl(tmp_path / "rows.jsonl", [chat_row("Hi", "Hello", "a")])
    shown = draftsmith("inspect", *arguments)
    assert shown.code == 2
    assert words in shown.err


def test_train_refuses_a_store_without_ends_of_turns(conversations: Path, tmp_path: Path, tokenizer: Any) -> None:
    draftsmith("prepare", conversations, tmp_path / "store", "--target", "tiny-random", "--holdout", "0.15")
    store = TokenStore.open(tmp_path / "store")
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    for sample in range(len(store)):
        change(store, "mask.bin", sample, np.flatnonzero(store.sample(sample).input_ids == end), 0)  # type: ignore[arg-type]
    lines = (CONFIGS / "tiny-cpu.toml").read_text(encoding="utf-8").splitlines()
    text = "\n".join(line for line in lines if not line.startswith(("conversations", "truncated")))
    (tmp_path / "mine.toml").write_text(text.replace("[data]", f"[data]\nstore = '{store.path}'"), encoding="utf-8")
    done = draftsmith("train", tmp_path / "mine.toml", f"run.dir={tmp_path / 'run'}")
    assert done.code == 2
    assert "end-of-turn token is not supervised" in done.err
    assert not (tmp_path / "run").exists()
