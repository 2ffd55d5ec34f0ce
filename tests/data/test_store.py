"""A store reads back what was written, and is whole or not there."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from draftsmith.data.accounting import Accounting
from draftsmith.data.encode import EncodedRows
from draftsmith.data.prepare import prepare
from draftsmith.data.store import TokenStore, is_held_out, seal
from draftsmith.data.writer import StoreWriter, existing_store
from draftsmith.errors import DataError
from draftsmith.records import TokenizedSample
from helpers import chat_row, write_jsonl

THREE_KEPT = Accounting(num_read=3, num_kept=3)


def sample(name: str, *tokens: int) -> TokenizedSample:
    """Negative tokens are supervised."""
    input_ids = np.abs(np.array(tokens, dtype=np.int32))
    return TokenizedSample(name, input_ids, np.array(tokens) < 0)


SAMPLES = (
    sample("a", 1, 2, -3, -4, -5),
    sample("b", 9, -8, 7, -8),
    sample("ü", 1, -2, -3),
)


def batch(samples: Sequence[TokenizedSample], accounting: Accounting = THREE_KEPT) -> EncodedRows:
    ids, masks = ([getattr(each, name) for each in samples] for name in ("input_ids", "loss_mask"))
    lengths, names = tuple(map(len, ids)), tuple(each.id for each in samples)
    return EncodedRows(np.concatenate(ids), np.concatenate(masks).astype(np.uint8), lengths, names, accounting, None)


def made_from(**changes: Any) -> dict[str, Any]:
    return {"vocab_size": 10, "holdout": 0.5, "max_length": 8, **changes}


def write(destination: Path, **changes: Any) -> TokenStore:
    with StoreWriter(destination, made_from(**changes)) as writer:
        writer.append(batch(SAMPLES))
        return writer.commit()


def stop_after(destination: Path, written: EncodedRows, error: BaseException) -> None:
    def stopped() -> None:
        with StoreWriter(destination, made_from()) as writer:
            writer.append(written)
            raise error

    with pytest.raises(type(error)):
        stopped()


def test_what_was_written_is_read_back(tmp_path: Path) -> None:
    write(tmp_path / "store")
    store = TokenStore.open(tmp_path / "store")
    assert len(store) == 3
    assert store.lengths.tolist() == [5, 4, 3]
    for index, expected in enumerate(SAMPLES):
        found = store.sample(index)
        assert found.id == expected.id
        assert found.input_ids.dtype == np.int32
        assert found.input_ids.tolist() == expected.input_ids.tolist()
        assert found.loss_mask.tolist() == expected.loss_mask.tolist()
    assert (store.meta["num_tokens"], store.meta["num_supervised"]) == (12, 7)
    with pytest.raises(IndexError):
        store.sample(3)


def test_anchors_never_reach_across_samples(tmp_path: Path) -> None:
    assert write(tmp_path / "store").num_anchors.tolist() == [2, 0, 1]


def test_a_prompt_is_what_stands_before_the_first_supervised_token(tmp_path: Path) -> None:
    store = write(tmp_path / "store")
    assert [store.prompt(i).tolist() for i in range(3)] == [[1, 2], [9], [1]]


def test_every_sample_is_on_one_side_and_tokens_seen_belong_to_that_side(tmp_path: Path) -> None:
    store = write(tmp_path / "store")
    train, holdout = store.train_indices.tolist(), store.holdout_indices.tolist()
    assert sorted(train + holdout) == [0, 1, 2]
    assert [is_held_out(SAMPLES[i].id, 0.5) for i in range(3)] == [i in holdout for i in range(3)]
    for split, indices in (("train", train), ("holdout", holdout), ("all", [0, 1, 2])):
        seen = sorted({int(t) for i in indices for t in SAMPLES[i].input_ids[SAMPLES[i].loss_mask]})
        assert store.tokens_seen(split).tolist() == seen  # type: ignore[arg-type]


def test_the_split_is_the_same_everywhere_and_grows_with_the_share() -> None:
    names = [str(i) for i in range(2000)]
    assert [name for name in names[:40] if is_held_out(name, 0.1)] == ["9", "39"]
    smaller = {name for name in names if is_held_out(name, 0.05)}
    larger = {name for name in names if is_held_out(name, 0.2)}
    assert smaller < larger
    assert 0.17 < len(larger) / len(names) < 0.23
    assert not any(is_held_out(name, 0.0) for name in names)


def test_an_identical_store_is_reused_and_another_one_refused_by_its_difference(tmp_path: Path) -> None:
    store = write(tmp_path / "store")
    assert existing_store(tmp_path / "nowhere", made_from()) is None
    reused = existing_store(tmp_path / "store", made_from())
    assert reused is not None
    assert reused.fingerprint == store.fingerprint
    with pytest.raises(DataError, match="max_length is 9, there 8"):
        existing_store(tmp_path / "store", made_from(max_length=9))
    (tmp_path / "file").write_text("precious")
    with pytest.raises(DataError, match="exists and is not a token store"):
        existing_store(tmp_path / "file", made_from())


def test_of_two_writers_of_one_store_the_second_is_refused_with_the_pid_of_the_first(tmp_path: Path) -> None:
    first = StoreWriter(tmp_path / "store", made_from())
    with first, pytest.raises(DataError, match=rf"is being prepared by process {os.getpid()}"):
        write(tmp_path / "store")
    assert len(write(tmp_path / "store")) == 3
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


def test_a_writer_goes_on_after_the_last_note_of_a_killed_one(tmp_path: Path) -> None:
    whole = write(tmp_path / "whole")
    killed = StoreWriter(tmp_path / "store", made_from())
    killed.__enter__()
    killed.append(batch(SAMPLES[:1], Accounting(num_read=1, num_kept=1)))
    killed.checkpoint()
    killed.append(batch(SAMPLES[1:2], Accounting(num_read=1, num_kept=1)))
    for file in killed._files.values():
        file.flush()  # written, but after the note
    killed._lock.close()  # what the system does for a killed process
    with StoreWriter(tmp_path / "store", made_from()) as writer:
        assert writer.accounting.num_read == 1
        writer.append(batch(SAMPLES[1:], Accounting(num_read=2, num_kept=2)))
        store = writer.commit()
    assert store.meta == whole.meta
    assert sorted(path.name for path in tmp_path.iterdir()) == ["store", "whole"]


@pytest.mark.parametrize("damage", ["other settings", "shorter file", "broken note"])
def test_what_cannot_be_gone_on_with_is_swept_and_begun_anew(tmp_path: Path, damage: str) -> None:
    stop_after(tmp_path / "store", batch(SAMPLES[:1], Accounting(num_read=1, num_kept=1)), KeyboardInterrupt())
    aside = tmp_path / ".store.partial"
    assert aside.is_dir()
    if damage == "shorter file":
        (aside / "mask.bin").write_bytes(b"")
    if damage == "broken note":
        (aside / "progress.json").write_text("{", encoding="utf-8")
    changes = {"max_length": 9} if damage == "other settings" else {}
    with StoreWriter(tmp_path / "store", made_from(**changes)) as writer:
        assert writer.accounting.num_read == 0
        writer.append(batch(SAMPLES))
        assert len(writer.commit()) == 3
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


@pytest.mark.parametrize("name", ["tokens.bin", "mask.bin", "ids.jsonl", "offsets.npy", "meta.json"])
@pytest.mark.parametrize("place", [0.0, 0.3, 0.7, 1.0])
def test_a_flipped_bit_anywhere_is_found(tmp_path: Path, name: str, place: float) -> None:
    write(tmp_path / "store")
    file = tmp_path / "store" / name
    content = bytearray(file.read_bytes())
    content[round(place * (len(content) - 1))] ^= 4
    file.write_bytes(bytes(content))
    with pytest.raises(DataError, match=r"damaged|cannot be read|describe|fit|content|version"):
        TokenStore.open(tmp_path / "store").verify()


def test_an_id_that_the_target_does_not_have_never_reaches_it(tmp_path: Path) -> None:
    write(tmp_path / "store")
    file = tmp_path / "store" / "tokens.bin"
    file.write_bytes(np.array([-1, *range(11)], dtype="<i4").tobytes())
    store = TokenStore.open(tmp_path / "store")
    for index in (0, 2):
        with pytest.raises(DataError, match=rf"sample {index} of .* holds an id outside 0\.\.9; delete the store"):
            store.sample(index)
    with pytest.raises(DataError, match="holds an id outside"):
        store.tokens_seen("all")


@pytest.mark.parametrize("name", ["tokens.bin", "mask.bin", "ids.jsonl", "offsets.npy"])
def test_a_damaged_store_names_the_damaged_file(tmp_path: Path, name: str) -> None:
    write(tmp_path / "store")
    file = tmp_path / "store" / name
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(DataError, match=rf"{name} has \d+ bytes, meta\.json says"):
        TokenStore.open(tmp_path / "store")
    file.unlink()
    with pytest.raises(DataError, match=f"{name} is missing"):
        TokenStore.open(tmp_path / "store")


def test_a_store_of_version_2_opens_with_the_first_row_of_every_reason(tmp_path: Path, tokenizer: Any) -> None:
    source = write_jsonl(tmp_path / "rows.jsonl", [chat_row("Hi", "Hello.", "a"), {"text": 1}, {"text": 2}])
    settings: dict[str, Any] = {"max_length": 64, "holdout": 0.0}
    store = prepare(source, tmp_path / "store", tokenizer, **settings)
    (rejected,) = store.meta["accounting"]["rejected"]
    earlier = {"reason": rejected["reason"], "count": 2, "first_line": 2, "detail": "why", "source": ""}
    accounting = {**store.meta["accounting"], "rejected": [earlier]}
    meta = seal({**store.meta, "version": 2, "accounting": accounting})
    (store.path / "meta.json").write_text(json.dumps(meta), encoding="utf-8")
    again = prepare(source, tmp_path / "store", tokenizer, **settings).accounting
    (rows,) = again.rejected.values()
    assert (rows.count, [(row.line, row.detail) for row in rows.places]) == (2, [(2, "why")])


def test_a_directory_that_is_no_store_or_of_another_version_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="not a token store"):
        TokenStore.open(tmp_path / "nowhere")
    write(tmp_path / "store")
    meta = tmp_path / "store" / "meta.json"
    known = json.loads(meta.read_text())
    meta.write_text(json.dumps({**known, "version": 999}))
    with pytest.raises(DataError, match="version 999"):
        TokenStore.open(tmp_path / "store")
    meta.write_text("{}")
    with pytest.raises(DataError, match="does not describe a token store"):
        TokenStore.open(tmp_path / "store")
    meta.write_text("{")
    with pytest.raises(DataError, match="cannot be read"):
        TokenStore.open(tmp_path / "store")


@pytest.mark.parametrize("call", ["rename", "fsync"])
def test_a_disk_error_is_named_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    def fail(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, call, fail)
    with pytest.raises(DataError, match=r"store could not be written: No space left on device"):
        write(tmp_path / "store")
    assert list(tmp_path.iterdir()) == []


def test_an_error_of_the_data_leaves_nothing_and_so_does_stopping_before_anything_was_read(tmp_path: Path) -> None:
    stop_after(tmp_path / "store", batch(SAMPLES), DataError("strict"))
    with pytest.raises(KeyboardInterrupt), StoreWriter(tmp_path / "store", made_from()):
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="cannot be written"), StoreWriter(tmp_path / "file" / "store", made_from()):
        pass
