"""What every order policy shares: its result, its checks, and the smallest possible runs and repeats."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from draftsmith.errors import PlanError

BucketArray = npt.NDArray[np.unsignedinteger[Any]]


@dataclass(frozen=True)
class Order:
    """sequence: the bucket of every batch of the epoch, uint8 [N] (uint16 above 256 buckets). certificate: what is
    proven about it, in plain numbers; empty for policies that promise nothing."""

    sequence: BucketArray
    certificate: dict[str, Any] = field(default_factory=dict)


OrderPolicy = Callable[[Sequence[int], int], Order]


MAX_BATCHES = 100_000_000  # an order is kept in memory, a byte a batch


def checked_counts(counts: Sequence[int]) -> list[int]:
    """Batches per bucket as Python ints; zeros are allowed, as long as something is left to order."""
    checked = [int(count) for count in counts]
    negative = [count for count in checked if count < 0]
    if negative:
        raise PlanError(f"a bucket has {negative[0]} batches; counts cannot be negative")
    if sum(checked) > MAX_BATCHES:
        raise PlanError(
            f"counts add up to {sum(checked):,} batches; an epoch of at most {MAX_BATCHES:,} can be planned"
        )
    if sum(checked) == 0:
        raise PlanError(f"counts {checked} hold no batch at all; there is nothing to order")
    return checked


def bucket_dtype(num_buckets: int) -> npt.DTypeLike:
    return np.uint8 if num_buckets <= 256 else np.uint16


def min_longest_run(counts: Sequence[int]) -> int:
    """The longest run that no order can avoid: the o other batches leave o + 1 gaps for the largest bucket."""
    largest = max(counts)
    others = sum(counts) - largest
    return -(-largest // (others + 1))


def min_adjacent_repeats(counts: Sequence[int]) -> int:
    """The number of equal neighbours that no order can avoid."""
    return max(0, 2 * max(counts) - sum(counts) - 1)
