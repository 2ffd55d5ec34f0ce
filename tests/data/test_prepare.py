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


def test_a_file_without_a_usable_row_names_reason_and_line(tmp_path: Path) -> None:
    source = write_rows(tmp_path / "rows.jsonl", {"messages": [{"role": "user", "content": "Hi"}]}, 3)
    with pytest.raises(DataError, match=r"no assistant turn \(first: line 1"):
        prepare(source, tmp_path / "store", zoo.byte_tokenizer(zoo.CHATML), max_length=64, holdout=0.0)
    assert [path.name for path in tmp_path.iterdir()] == ["rows.jsonl"]
