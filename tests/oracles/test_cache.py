"""The position-addressed cache and its mask against a dictionary and the rule as loops."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from draftsmith.target import PositionCache
from draftsmith.target.cache import visible

CAPACITY = 12
steps = st.lists(st.lists(st.integers(0, CAPACITY - 1), min_size=2, max_size=2), min_size=1, max_size=8)


@given(steps)
def test_every_position_holds_what_was_stored_there_last(starts: list[list[int]]) -> None:
    cache, known = PositionCache(CAPACITY), [{}, {}]
    for number, row_starts in enumerate(starts, start=1):
        positions = torch.tensor([[min(start + k, CAPACITY - 1 - (2 - k)) for k in range(3)] for start in row_starts])
        cache.place(positions)
        states = number + torch.arange(6.0).view(2, 1, 3, 1) / 10
        keys, values = cache.update(states, -states, layer_idx=0)
        for row in range(2):
            for column, position in enumerate(positions[row].tolist()):
                known[row][position] = float(states[row, 0, column, 0])
    assert keys.shape[2] == max(position for row in known for position in row) + 1 == cache.get_seq_length()
    for row in range(2):
        assert keys[row, 0, :, 0].tolist() == [known[row].get(p, 0.0) for p in range(keys.shape[2])]
    assert torch.equal(values, -keys)


def test_rows_are_dropped_and_reordered_together() -> None:
    cache = PositionCache(4)
    cache.place(torch.tensor([[0], [0], [0]]))
    cache.update(torch.tensor([1.0, 2.0, 3.0]).view(3, 1, 1, 1), torch.zeros(3, 1, 1, 1), layer_idx=0)
    cache.keep_rows(torch.tensor([2, 0]))
    cache.place(torch.tensor([[1], [1]]))
    keys, _ = cache.update(torch.tensor([30.0, 10.0]).view(2, 1, 1, 1), torch.zeros(2, 1, 1, 1), layer_idx=0)
    assert keys[:, 0, :, 0].tolist() == [[3, 30], [1, 10]]


def test_a_position_beyond_the_capacity_is_refused() -> None:
    with pytest.raises(IndexError, match="position 4 is beyond the cache's capacity of 4"):
        PositionCache(4).place(torch.tensor([[4]]))


@given(st.lists(st.integers(0, 9), min_size=1, max_size=4), st.one_of(st.none(), st.integers(1, 10)))
def test_a_query_sees_itself_and_what_is_before_it_within_the_window(positions: list[int], window: int | None) -> None:
    mask = visible(torch.tensor([positions]), 10, window)
    for query, position in enumerate(positions):
        expected = [t <= position and (window is None or position - t < window) for t in range(10)]
        assert mask[0, 0, query].tolist() == expected
