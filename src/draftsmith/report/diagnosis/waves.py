"""Does the order of the buckets make the smoothed curve go up and down?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from draftsmith.report.diagnosis.decompose import Parts, smooth
from draftsmith.report.record import IntArray

CLUMPED = 2.0  # how many times stronger than in a shuffle the waves of the order must be


@dataclass(frozen=True)
class OrderWave:
    """width: batches over which it shows best. height: standard deviation of the smoothed loss that it makes.
    clumping: how many times stronger than in a shuffle. run: first index, length and bucket of the longest stretch of
    one bucket."""

    width: int
    height: float
    clumping: float
    run: tuple[int, int, int]


def order_wave(parts: Parts, bucket: IntArray) -> OrderWave | None:
    """The waves that the order makes, if they are more than luck and more than noise; else None."""
    total, alone = len(bucket), float(np.std(parts.effect))
    if alone == 0:
        return None
    found = []
    width = 4
    while width <= total // 6:
        height = float(np.std(smooth(parts.effect, width)))
        clumping = height / (alone / np.sqrt(width))
        by_luck = 1 + 6 / np.sqrt(2 * total / width)
        noise = float(np.std(smooth(np.clip(parts.rest, -5 * parts.scale, 5 * parts.scale), width)))
        if clumping > max(CLUMPED, by_luck) and height > noise:
            found.append((height / noise, width, height, clumping))
        width = max(width + 1, width * 3 // 2)
    if not found:
        return None
    _, width, height, clumping = max(found)
    return OrderWave(width, height, clumping, longest_run(bucket))


def longest_run(bucket: IntArray) -> tuple[int, int, int]:
    """First index, length and bucket of the longest stretch of one bucket."""
    starts = np.flatnonzero(np.diff(bucket, prepend=bucket[0] - 1))
    lengths = np.diff(np.append(starts, len(bucket)))
    at = int(np.argmax(lengths))
    return int(starts[at]), int(lengths[at]), int(bucket[starts[at]])
