"""prepare: rows in, store out; accounting adds up, failing leaves nothing behind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import zoo

from draftsmith.data.collate import collate
from draftsmith.data.prepare import prepare
from draftsmith.data.store import TokenStore
from draftsmith.errors import DataError
from draftsmith.records import BatchSpec


def write_rows(path: Path, *rows: object) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def row(question: str, answer: str) -> dict[str, object]:
    return {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]}


def test_a_prepared_row_decodes_to_what_the_template_renders(tmp_path: Path) -> None:
    tokenizer = zoo.byte_tokenizer(zoo.CHATML)
    source = write_rows(tmp_path / "rows.jsonl", row("Hi", "Hello"), row("And", "Bye"))
    store = prepare(source, tmp_path / "store", tokenizer, max_length=64, holdout=0.0)
    sample = store.sample(0)
    assert len(store) == 2
    assert tokenizer.decode(sample.input_ids) == (
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello<|im_end|>\n"
    )
    assert zoo.supervised(tokenizer, sample.input_ids, sample.loss_mask) == ["Hello<|im_end|>"]
    assert tokenizer.decode(store.prompt(0)) == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    batch = collate(store, BatchSpec(seq=0, epoch=0, bucket=0, samples=(1, 0), padded_length=64))
    assert batch.input_ids[1, : len(sample.input_ids)].tolist() == sample.input_ids.tolist()
    assert TokenStore.open(tmp_path / "store").fingerprint == store.fingerprint


def test_rows_read_are_rows_kept_and_rows_rejected_by_reason(tmp_path: Path) -> None:
    only_user = {"messages": [{"role": "user", "content": "Hi"}]}
    rows = [row("Hi", "Hello"), only_user, 7, row("Hi", ""), row("x" * 60, "late"), only_user, row("Hi", "y" * 90)]
    source = write_rows(tmp_path / "rows.jsonl", *rows)
    seen: list[tuple[int, int]] = []
    store = prepare(
        source,
        tmp_path / "store",
        zoo.byte_tokenizer(zoo.CHATML),
        max_length=64,
        holdout=0.0,
        progress=lambda *counts: seen.append(counts),
    )
    accounting = store.accounting
    assert (accounting.num_read, accounting.num_kept, accounting.num_truncated) == (7, 2, 1)
    assert accounting.num_rejected == 5
    assert {reason: (rows.count, rows.first.line) for reason, rows in accounting.rejected.items()} == {
        "no assistant turn": (2, 2),
        "not a JSON object": (1, 3),
        "empty content": (1, 4),
        "no supervised token left after truncation at 64": (1, 5),
    }
    assert accounting.rejected["no supervised token left after truncation at 64"].first.detail == (
        "supervision starts at token 79"
    )
    assert store.lengths.max() == 64
    assert seen == [(7, int(store.lengths.sum()))]


def test_strict_turns_the_first_rejection_of_any_kind_into_an_error(tmp_path: Path) -> None:
    tokenizer = zoo.byte_tokenizer(zoo.CHATML)
    for bad in (7, {"messages": [{"role": "user", "content": "Hi"}]}, row("x" * 99, "late")):
        source = write_rows(tmp_path / "rows.jsonl", row("Hi", "Hello"), bad)
        with pytest.raises(DataError, match=r"rows\.jsonl, line 2: "):
            prepare(source, tmp_path / "store", tokenizer, max_length=64, holdout=0.0, strict=True)
        assert not (tmp_path / "store").exists()


def test_preparing_again_reuses_the_store_and_other_settings_are_refused(tmp_path: Path) -> None:
    source = write_rows(tmp_path / "rows.jsonl", row("Hi", "Hello"))
    tokenizer = zoo.byte_tokenizer(zoo.CHATML)
    first = prepare(source, tmp_path / "store", tokenizer, max_length=64, holdout=0.0)
    made = (tmp_path / "store" / "meta.json").stat().st_mtime_ns
    assert prepare(source, tmp_path / "store", tokenizer, max_length=64, holdout=0.0).fingerprint == first.fingerprint
    assert (tmp_path / "store" / "meta.json").stat().st_mtime_ns == made
    with pytest.raises(DataError, match="max_length is 32, there 64"):
        prepare(source, tmp_path / "store", tokenizer, max_length=32, holdout=0.0)
    with pytest.raises(DataError, match="template_sha256"):
        prepare(source, tmp_path / "store", zoo.byte_tokenizer(zoo.LLAMA3), max_length=64, holdout=0.0)
    write_rows(tmp_path / "rows.jsonl", row("Hi", "Goodbye"))
    with pytest.raises(DataError, match="rows_sha256"):
        prepare(source, tmp_path / "store", tokenizer, max_length=64, holdout=0.0)


def test_turns_of_one_conversation_share_its_id_and_its_side_of_the_split(tmp_path: Path) -> None:
    chats = [zoo.chat("Hi", "Hello.", "And?", "Bye!", name=str(i)) for i in range(40)]
    store = prepare(chats, tmp_path / "store", zoo.byte_tokenizer(zoo.QWEN3), max_length=256, holdout=0.3)
    assert (len(store), store.accounting.num_kept) == (80, 40)
    assert store.ids == [str(i) for i in range(40) for _ in range(2)]
    held_out = {store.ids[i] for i in store.holdout_indices}
    assert held_out
    assert held_out.isdisjoint({store.ids[i] for i in store.train_indices})


def test_a_conversation_is_tokenised_alike_from_memory_and_from_a_file(tmp_path: Path) -> None:
    tokenizer = zoo.byte_tokenizer(zoo.GEMMA)
    source = write_rows(tmp_path / "rows.jsonl", {"id": "c", **row("Hi", "Hello")})
    from_file = prepare(source, tmp_path / "one", tokenizer, max_length=64, holdout=0.0).sample(0)
    from_memory = prepare([zoo.chat("Hi", "Hello")], tmp_path / "two", tokenizer, max_length=64, holdout=0.0).sample(0)
    assert from_file.input_ids.tolist() == from_memory.input_ids.tolist()
    with pytest.raises(DataError, match="no conversations"):
        prepare([], tmp_path / "three", tokenizer, max_length=64, holdout=0.0)


def test_a_missing_source_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none\.jsonl does not exist"):
        prepare(tmp_path / "none.jsonl", tmp_path / "store", zoo.byte_tokenizer(zoo.CHATML), max_length=64, holdout=0.0)
    assert list(tmp_path.iterdir()) == []


def test_a_file_without_a_usable_row_names_reason_and_line(tmp_path: Path) -> None:
    source = write_rows(tmp_path / "rows.jsonl", {"messages": [{"role": "user", "content": "Hi"}]}, 3)
    with pytest.raises(DataError, match=r"no assistant turn \(first: line 1"):
        prepare(source, tmp_path / "store", zoo.byte_tokenizer(zoo.CHATML), max_length=64, holdout=0.0)
    assert [path.name for path in tmp_path.iterdir()] == ["rows.jsonl"]
