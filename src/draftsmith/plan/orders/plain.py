"""Orders that promise nothing, for comparison."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from draftsmith.plan.keyed import permutation
from draftsmith.plan.orders.base import BucketArray, Order, bucket_dtype, checked_counts


def sequential(counts: Sequence[int], key: int) -> Order:
    """Bucket after bucket, shortest first: the worst mixing there is."""
    return Order(_blocks(counts))


def shuffle(counts: Sequence[int], key: int) -> Order:
    """A uniformly random order: no drift on average, sqrt(N) in fact, and runs as luck has it."""
    blocks = _blocks(counts)
    return Order(blocks[permutation(key, len(blocks))])


def _blocks(counts: Sequence[int]) -> BucketArray:
    numbers = checked_counts(counts)
    return np.repeat(np.arange(len(numbers)), numbers).astype(bucket_dtype(len(numbers)))
