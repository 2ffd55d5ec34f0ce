"""Which lengths share a bucket: edges by dynamic programming, by quantiles, geometric, or given.

An edge is a bucket's inclusive top. A batch of a bucket holds `max_tokens // top` rows, so what costs steps is not the
padding but where that quotient changes: minimising padded tokens leaves more batches than the edges found here
(docs/design/plan.md has the table). All arithmetic is in integers; no edge depends on a platform's floats.
"""

from __future__ import annotations

import numpy as np

from draftsmith.plan.keyed import IntArray
from draftsmith.plan.settings import PlanSettings


def rows_per_batch(top: int, settings: PlanSettings) -> int:
    """Rows of a full batch whose rows are padded to `top` tokens."""
    rows = settings.max_tokens // top
    return rows if settings.max_rows is None else min(rows, settings.max_rows)


def choose_edges(lengths: IntArray, settings: PlanSettings) -> tuple[int, ...]:
    """Increasing inclusive bucket tops that cover every length (int64 [n], each within max_tokens).

    The last top is the longest length unless explicit edges reach further. Explicit edges that end below the longest
    length get one more bucket; chosen edges never leave a bucket empty, so there may be fewer than num_buckets.
    """
    longest = int(lengths.max())
    if settings.edges is not None:
        return settings.edges if settings.edges[-1] >= longest else (*settings.edges, longest)
    if settings.edge_method == "quantile":
        ordered = np.sort(lengths)
        cuts = [len(ordered) * part // settings.num_buckets for part in range(1, settings.num_buckets + 1)]
        return tuple(sorted({int(ordered[cut - 1]) for cut in cuts if cut > 0}))
    if settings.edge_method == "geometric":
        return _geometric_edges(lengths, settings.num_buckets)
    return _fewest_batches(lengths, settings)


def assign_buckets(lengths: IntArray, edges: tuple[int, ...]) -> IntArray:
    """Bucket of every length. Shape [n]."""
    return np.searchsorted(np.asarray(edges, dtype=np.int64), lengths, side="left").astype(np.int64)


def _geometric_edges(lengths: IntArray, num_buckets: int) -> tuple[int, ...]:
    low, high = int(lengths.min()), int(lengths.max())
    tops = [_root(low ** (num_buckets - part) * high**part, num_buckets) for part in range(1, num_buckets + 1)]
    return _without_empty(lengths, sorted({*tops[:-1], high}))


def _root(number: int, degree: int) -> int:
    """Largest integer whose power `degree` is at most number; Newton's method from above, exact."""
    guess = 1 << -(-number.bit_length() // degree)
    while True:
        better = ((degree - 1) * guess + number // guess ** (degree - 1)) // degree
        if better >= guess:
            return guess
        guess = better


def _without_empty(lengths: IntArray, tops: list[int]) -> tuple[int, ...]:
    filled = np.bincount(assign_buckets(lengths, tuple(tops)), minlength=len(tops)) > 0
    return tuple(top for top, has_samples in zip(tops, filled, strict=True) if has_samples)


def _fewest_batches(lengths: IntArray, settings: PlanSettings) -> tuple[int, ...]:
    """Tops with the fewest batches under static shapes, by dynamic programming over the useful tops.

    Raising a top to the next length where `max_tokens // top` changes costs no rows, so only those lengths are
    candidates: about 2 sqrt(max_tokens) of them. Cost of a bucket is ceil(samples / rows), its partial batch included.
    """
    tops = _useful_tops(int(lengths.max()), settings)
    up_to = np.searchsorted(np.sort(lengths), tops, side="right").astype(np.int64)
    rows = np.array([rows_per_batch(int(top), settings) for top in tops], dtype=np.int64)
    below = np.concatenate([[0], up_to])
    # cost[a, b]: batches of one bucket that holds the lengths above tops[a - 1] and up to tops[b].
    cost = -((below[:-1, None] - up_to[None, :]) // rows[None, :])
    cost[np.tril_indices(len(tops), -1)] = len(lengths) + 1
    best, sources = cost[0].copy(), []
    layers = [int(best[-1])]
    for _ in range(1, min(settings.num_buckets, len(tops))):
        total = best[:-1, None] + cost[1:, :]
        sources.append(np.argmin(total, axis=0))
        best = np.minimum.reduce(total, axis=0)
        layers.append(int(best[-1]))
    num_buckets = int(np.argmin(layers)) + 1  # the smallest number of buckets that reaches the optimum
    chosen, end = [], len(tops) - 1
    for source in reversed(sources[: num_buckets - 1]):
        chosen.append(end)
        end = int(source[end])
    chosen.append(end)
    return _without_empty(lengths, [int(tops[index]) for index in reversed(chosen)])


def _useful_tops(longest: int, settings: PlanSettings) -> IntArray:
    tops, top = [], longest
    while top >= 1:
        tops.append(top)
        rows = rows_per_batch(top, settings)
        if settings.max_rows is not None and rows >= settings.max_rows:
            break
        top = settings.max_tokens // (rows + 1)
    return np.array(tops[::-1], dtype=np.int64)
