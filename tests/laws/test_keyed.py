"""The same key gives the same draw, here and on every machine."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from draftsmith.keyed import keyed_generator

keys = st.tuples(
    st.integers(0, 2**40), st.text(st.characters(codec="ascii", categories=["L"]), max_size=8), st.integers()
)


@given(keys)
def test_the_same_key_gives_the_same_draw(key: tuple[int, str, int]) -> None:
    assert keyed_generator(*key).integers(2**62) == keyed_generator(*key).integers(2**62)


@given(keys, keys)
def test_different_keys_give_different_draws(one: tuple[int, str, int], other: tuple[int, str, int]) -> None:
    same = keyed_generator(*one).integers(2**62) == keyed_generator(*other).integers(2**62)
    assert same == (one == other)


def test_parts_of_a_key_do_not_run_together() -> None:
    draws = {
        int(keyed_generator(*key).integers(2**62)) for key in [(1, "a", 23), (1, "a", 2, 3), (12, "a", 3), (1, "a2", 3)]
    }
    assert len(draws) == 4


def test_draws_are_frozen_so_that_runs_of_other_versions_can_be_repeated() -> None:
    assert keyed_generator(0, "anchors", 3, 17).integers(1000, size=5).tolist() == [113, 448, 567, 785, 998]
