"""Evenly spaced positions: copy j of bucket i stands near (j + phase_i) / n_i of the epoch; positions are sorted.

Cheap and well mixed, without certificate: a random phase per bucket and a jitter of half a spacing keep epochs apart,
drift stays near 2 batches, and neighbours repeat about a third as often as in a shuffle.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from draftsmith.plan.keyed import below, draws, key_of
from draftsmith.plan.orders.base import Order, bucket_dtype, checked_counts

_FRACTION_BITS = 16  # a spacing is divided into 2**16; enough for a phase, and 63 bits hold 2**24 batches with ease


def stride(counts: Sequence[int], key: int) -> Order:
    """Stride with a random phase and a jitter of half a spacing; integer positions, ties to the smaller bucket."""
    numbers = checked_counts(counts)
    spacing = 1 << _FRACTION_BITS
    scale = 1 << (62 - _FRACTION_BITS - sum(numbers).bit_length())
    positions, buckets = [], []
    for bucket, count in enumerate(numbers):
        if count == 0:
            continue
        phase = below(key_of(key, "phase", bucket), spacing)
        jitter = (draws(key_of(key, "jitter", bucket), count) * spacing >> 33) - spacing // 4
        place = (np.arange(count, dtype=np.int64) * spacing + phase + jitter) % (count * spacing)
        positions.append(place * scale // count)
        buckets.append(np.full(count, bucket, dtype=bucket_dtype(len(numbers))))
    order = np.argsort(np.concatenate(positions), kind="stable")
    return Order(np.concatenate(buckets)[order])
