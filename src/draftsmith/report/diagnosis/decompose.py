"""loss = trend + effect of the bucket + rest, fitted together, so that a bucket's effect is told from the trend even
where the order keeps buckets together for long.

The trend is a piecewise linear curve with knots at even distances of log time: it can follow the steep beginning, and
later cannot bend fast enough to hide a wave. The fit is robust: what stands far out weighs nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from draftsmith.report.record import FloatArray, IntArray

NUM_KNOTS = 32
EARLY = 1 / 200  # share of the run that log time begins to squeeze after
STIFFNESS = 1e-3  # of the penalty on bends, relative to the weight of the points at a knot
ROUNDS = 8
CUTOFF = 1.5  # of Huber's weights; weights that fall to 0 would let the trend lock onto one of two levels
SD_OF_MAD = 1.4826
NUM_WINDOWS = 20


@dataclass(frozen=True)
class Parts:
    """trend, effect, rest: [n]; they add up to the loss. effects: [K], one for each bucket, their mean over the batches
    is 0. scale: [n], robust standard deviation of the rest nearby. sigma: that of the whole rest."""

    trend: FloatArray
    effect: FloatArray
    rest: FloatArray
    effects: FloatArray
    scale: FloatArray
    sigma: float


def decompose(loss: FloatArray, bucket: IntArray, num_buckets: int) -> Parts:
    """Fit the parts to finite losses [n] and their buckets [n] in 0..K-1. n >= 8."""
    knots = min(NUM_KNOTS, max(4, len(loss) // 15))
    left, share = _places(len(loss), knots)
    weights = np.ones(len(loss))
    for _ in range(ROUNDS):
        coefficients, effects = _solve(loss, bucket, weights, left, share, (knots, num_buckets))
        trend = coefficients[left] * (1 - share) + coefficients[left + 1] * share
        rest = loss - trend - effects[bucket]
        scale = local_scale(rest)
        weights = 1 / np.maximum(1.0, np.abs(rest) / (CUTOFF * scale))
    counts = np.bincount(bucket, minlength=num_buckets)
    middle = float((effects * counts).sum() / counts.sum())
    effects = np.where(counts > 0, effects - middle, 0.0)
    trend = trend + middle
    return Parts(trend, effects[bucket], rest, effects, scale, spread(rest))


def spread(values: FloatArray) -> float:
    """Robust standard deviation; never 0, so that it can divide."""
    return max(
        SD_OF_MAD * float(np.median(np.abs(values - np.median(values)))), 1e-12 + 1e-9 * float(np.abs(values).max())
    )


def local_scale(values: FloatArray) -> FloatArray:
    """Robust standard deviation around every place, [n]: of windows, with straight lines between their middles."""
    windows = np.array_split(np.arange(len(values)), max(1, min(NUM_WINDOWS, len(values) // 60)))
    overall = spread(values)
    found = [max(spread(values[window]), 0.1 * overall) for window in windows]
    return np.interp(np.arange(len(values)), [window.mean() for window in windows], found)


def longer(rest: FloatArray) -> float:
    """How many batches of this noise are worth one of noise without memory, from what neighbours have in common."""
    near = np.clip(rest, -5 * spread(rest), 5 * spread(rest))
    before, after = near[:-1] - near[:-1].mean(), near[1:] - near[1:].mean()
    common = float(before @ after) / max(float(np.sqrt((before @ before) * (after @ after))), 1e-300)
    memory = min(max(common, 0.0), 0.98)
    return (1 + memory) / (1 - memory)


def smooth(values: FloatArray, width: int) -> FloatArray:
    """Mean of every `width` neighbours, [n - width + 1]."""
    running = np.concatenate([[0.0], np.cumsum(values)])
    return np.asarray((running[width:] - running[:-width]) / width)


def _places(total: int, knots: int) -> tuple[IntArray, FloatArray]:
    """Every step's knot to the left, and how far it is on the way to the next one."""
    early = max(1.0, total * EARLY)
    place = np.log1p(np.arange(total) / early)
    place *= (knots - 1) / place[-1]
    left = np.minimum(place.astype(np.int64), knots - 2)
    return left, place - left


def _solve(
    loss: FloatArray,
    bucket: IntArray,
    weights: FloatArray,
    left: IntArray,
    share: FloatArray,
    sizes: tuple[int, int],
) -> tuple[FloatArray, FloatArray]:
    """Weighted least squares by the normal equations: every step touches two knots and one bucket."""
    knots, num_buckets = sizes
    columns = ((left, 1 - share), (left + 1, share), (knots + bucket, np.ones(len(loss))))
    size = knots + num_buckets
    matrix, right = np.zeros(size * size), np.zeros(size)
    for rows, values in columns:
        right += np.bincount(rows, weights * values * loss, size)
        for others, factors in columns:
            matrix += np.bincount(rows * size + others, weights * values * factors, size * size)
    normal = matrix.reshape(size, size)
    second = np.diff(np.eye(knots), 2, axis=0)
    normal[:knots, :knots] += STIFFNESS * len(loss) / knots * (second.T @ second)
    normal[knots:, knots:] += 1e-6 * max(1.0, float(weights.sum())) / size * np.eye(num_buckets)
    solution = np.asarray(np.linalg.lstsq(normal, right, rcond=None)[0], dtype=np.float64)
    return solution[:knots], solution[knots:]
