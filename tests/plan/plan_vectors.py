"""Count vectors and lengths that several tests of the plan use."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from hypothesis import strategies as st

PRODUCTION = (2120, 4017, 5471, 7493, 8009, 19581)
LENGTHS = np.random.default_rng(0).integers(1, 3000, 3000)


def small_vectors(most: int, parts: int) -> Iterator[tuple[int, ...]]:
    """Every vector of 2..parts positive counts with a sum of at most `most`, largest first."""

    def split(left: int, biggest: int, slots: int) -> Iterator[tuple[int, ...]]:
        yield ()
        if slots:
            for first in range(min(left, biggest), 0, -1):
                for rest in split(left - first, first, slots - 1):
                    yield (first, *rest)

    yield from (vector for vector in split(most, most, parts) if len(vector) >= 2)


@st.composite
def count_vectors(draw: st.DrawFn) -> list[int]:
    """Random counts with the awkward kinds: one bucket, many, zeros, tiny, a majority, exactly one half."""
    num_buckets = draw(st.sampled_from([1, 2, 3, 5, 6, 17, 64]))
    most = draw(st.sampled_from([1, 3, 12, 40] if num_buckets < 10 else [1, 3, 8]))
    counts = draw(st.lists(st.integers(0, most), min_size=num_buckets, max_size=num_buckets))
    kind = draw(st.sampled_from(["any", "half", "majority"]))
    if kind != "any" and num_buckets > 1:
        others = sum(counts[1:])
        counts[0] = others if kind == "half" else others * draw(st.integers(2, 4)) + 1
    if sum(counts) == 0:
        counts[0] = 1
    return counts
