"""Padding is invisible, cutting is exact."""

from __future__ import annotations

import pytest
import torch
import zoo

from draftsmith.data.collate import collate
from draftsmith.data.prepare import prepare
from draftsmith.data.store import TokenStore
from draftsmith.errors import DataError
from draftsmith.records import BatchSpec


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> TokenStore:
    chats = [zoo.chat("Hi", "Hello.", name="0"), zoo.chat("Tell me more", "There is nothing more.", name="1")]
    destination = tmp_path_factory.mktemp("collate") / "store"
    return prepare(chats, destination, zoo.byte_tokenizer(zoo.CHATML), max_length=64, holdout=0.0)


def spec(*samples: int, padded_length: int) -> BatchSpec:
    return BatchSpec(seq=3, epoch=0, bucket=0, samples=samples, padded_length=padded_length)


def test_rows_are_the_samples_in_the_planned_order_padded_on_the_right(store: TokenStore) -> None:
    batch = collate(store, spec(1, 0, padded_length=70))
    assert batch.input_ids.dtype == torch.int64
    assert batch.input_ids.shape == batch.attention_mask.shape == batch.loss_mask.shape == (2, 70)
    for row, index in enumerate((1, 0)):
        sample = store.sample(index)
        length = len(sample.input_ids)
        assert batch.input_ids[row, :length].tolist() == sample.input_ids.tolist()
        assert batch.loss_mask[row, :length].tolist() == sample.loss_mask.tolist()
        assert batch.attention_mask[row].tolist() == [True] * length + [False] * (70 - length)
        assert not batch.loss_mask[row, length:].any()
        assert not batch.input_ids[row, length:].any()


def test_more_padding_changes_nothing_that_is_attended_to(store: TokenStore) -> None:
    short, long = collate(store, spec(0, padded_length=40)), collate(store, spec(0, padded_length=64))
    for name in ("input_ids", "attention_mask", "loss_mask"):
        assert torch.equal(getattr(short, name), getattr(long, name)[:, :40])


def test_a_row_longer_than_the_batch_is_cut(store: TokenStore) -> None:
    batch = collate(store, spec(1, padded_length=5))
    assert batch.input_ids[0].tolist() == store.sample(1).input_ids[:5].tolist()
    assert batch.attention_mask.all()


def test_an_index_beyond_the_store_is_named_with_its_batch(store: TokenStore) -> None:
    with pytest.raises(DataError, match="batch 3 asks for sample 2, but the store has 2"):
        collate(store, spec(0, 2, padded_length=8))
