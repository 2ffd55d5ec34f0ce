"""Orders that promise nothing: what people use today, for comparison and diagnosis."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from draftsmith.plan.keyed import draws, permutation
from draftsmith.plan.orders.base import BucketArray, Order, bucket_dtype, checked_counts

_CHUNK = 1 << 16


def sequential(counts: Sequence[int], key: int) -> Order:
    """Bucket after bucket, shortest first: the worst mixing there is."""
    return Order(_blocks(counts))


def shuffle(counts: Sequence[int], key: int) -> Order:
    """A uniformly random order: no drift on average, of the size of sqrt(N) in fact, and runs as luck has it."""
    blocks = _blocks(counts)
    return Order(blocks[permutation(key, len(blocks))])


def weighted(counts: Sequence[int], key: int) -> Order:
    """Draw a bucket in proportion to what remains of it. The same law as `shuffle`, reached step by step."""
    return Order(_draw_by_remaining(counts, key, tenths_for_last=10))


def soft_anti_repeat(counts: Sequence[int], key: int) -> Order:
    """As `weighted`, with the last bucket's weight times 0.3: the large bucket falls behind, mildly, to the end."""
    return Order(_draw_by_remaining(counts, key, tenths_for_last=3))


def diversity_first(counts: Sequence[int], key: int) -> Order:
    """As `weighted`, but never the last bucket while another is left: the small ones run out, the large one remains."""
    return Order(_draw_by_remaining(counts, key, tenths_for_last=0))


def _blocks(counts: Sequence[int]) -> BucketArray:
    numbers = checked_counts(counts)
    return np.repeat(np.arange(len(numbers)), numbers).astype(bucket_dtype(len(numbers)))


def _draw_by_remaining(counts: Sequence[int], key: int, *, tenths_for_last: int) -> BucketArray:
    remaining = checked_counts(counts)
    left, total, last = sum(remaining), sum(remaining), -1
    sequence = np.empty(total, dtype=bucket_dtype(len(remaining)))
    for start in range(0, total, _CHUNK):
        num = min(_CHUNK, total - start)
        picks = []
        for draw in draws(key, num, start=start).tolist():
            spared = remaining[last] * (10 - tenths_for_last) if last >= 0 else 0
            mass = 10 * left - spared
            if mass:
                ticket, pick = draw * mass >> 32, 0
                while True:
                    weight = remaining[pick] * (tenths_for_last if pick == last else 10)
                    if ticket < weight:
                        break
                    ticket -= weight
                    pick += 1
                last = pick
            remaining[last] -= 1  # no mass: only the last bucket is left
            left -= 1
            picks.append(last)
        sequence[start : start + num] = picks
    return sequence
