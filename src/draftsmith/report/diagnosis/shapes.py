"""Shapes of a curve whose buckets have been taken out: spikes, jumps, stairs at epochs, plateaus, a rising end."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from draftsmith.report.diagnosis.decompose import Parts, longer, smooth, spread
from draftsmith.report.record import FloatArray, IntArray

SPIKE = 8.0  # deviations
SPIKE_LENGTH = 5
JUMP = 6.5  # deviations of what such a difference usually is
START = 0.02  # share of the run whose steep fall is no event
FLAT = 0.015  # share of the level
LONG_FLAT, LATE_FLAT = 0.25, 0.4  # shares of the run
RISE = 0.05
BEGINNING = 0.1  # share of the run in which a trend cannot be told from buckets that come one after another


@dataclass(frozen=True)
class Plateau:
    """kind: start (never moved), middle (fell on afterwards), end. first, last: indices."""

    kind: str
    first: int
    last: int


def spikes(parts: Parts, bucket: IntArray) -> list[int]:
    """Indices of short upward excursions, the highest of each; noise may differ between buckets."""
    scale = parts.scale.copy()
    for number in range(len(parts.effects)):
        mine = bucket == number
        if np.count_nonzero(mine) >= 20:
            scale[mine] *= max(1.0, spread(parts.rest[mine] / parts.scale[mine]))
    height = parts.rest / scale
    high = np.flatnonzero(height > SPIKE)
    high = high[high >= max(10, int(START * len(height)))]
    if not len(high):
        return []
    groups = np.split(high, np.flatnonzero(np.diff(high) > SPIKE_LENGTH) + 1)
    return [int(g[np.argmax(height[g])]) for g in groups if g[-1] - g[0] < SPIKE_LENGTH]


def jumps(parts: Parts, bucket: IntArray) -> list[int]:
    """Indices from which on the loss stands higher than before for a while, without buckets being why."""
    width = window_of(len(bucket))
    if len(bucket) < 6 * width:
        return []
    level = differences(parts, width)
    first = max(width, int(START * len(bucket)))
    usual = spread(level[first - width :])
    middle = float(np.median(level[first - width :]))
    found: list[int] = []
    for at in np.argsort(-level, kind="stable").tolist():
        if level[at] < middle + JUMP * usual or level[at] < 1.0:
            break
        place = at + width
        if place < first or any(abs(place - other) < 2 * width for other in found):
            continue
        if _mixture_changes(bucket, place, width):
            continue
        found.append(place)
    return sorted(_sharpened(parts, place, width) for place in found)


def stairs(parts: Parts, bucket: IntArray, epoch: IntArray) -> float | None:
    """Mean fall of the loss at the beginnings of epochs, in units of loss, if most of them begin with one."""
    beginnings = np.flatnonzero(np.diff(epoch)) + 1
    if len(beginnings) < 2:
        return None
    width = min(window_of(len(epoch)), max(5, int(np.diff(beginnings).min()) // 4))
    inside = [int(b) for b in beginnings if width <= b <= len(epoch) - width]
    inside = [b for b in inside if not _mixture_changes(bucket, b, width)]
    level = differences(parts, width)
    if len(inside) < 2:
        return None
    usual, middle = spread(level), float(np.median(level))
    falls = np.array([level[b - width] for b in inside]) - middle
    if np.mean(falls < -3.5 * usual) < 0.7 or float(np.median(falls)) > -0.5:
        return None
    return float(-np.median(falls) * parts.sigma)


def plateau(parts: Parts) -> Plateau | None:
    """The stretch in which the trend does not move, if it is long and the noise is low enough to say so."""
    trend, total = parts.trend, len(parts.trend)
    noise = float(np.std(np.clip(parts.rest, -6 * parts.scale, 6 * parts.scale)))
    error = noise * np.sqrt(longer(parts.rest) / max(1.0, total / 8))
    level = float(np.median(np.abs(trend[-max(1, total // 7) :])))
    if error <= FLAT / 5 * level:
        end = _flat_from_the_end(trend, FLAT * level + error)
        if end <= total * (1 - LATE_FLAT):
            return Plateau("start" if end <= max(10, 0.05 * total) else "end", end, total - 1)
    level = float(np.median(np.abs(trend)))
    if error > FLAT / 5 * level:
        return None
    first, last = _longest_flat(trend, 2 * (FLAT * level + error))
    falls_on = trend[last] - trend[-1] > RISE * level
    if last - first >= LONG_FLAT * total and falls_on and first > START * total:
        return Plateau("middle", first, last)
    return None


def rises_from(parts: Parts) -> int | None:
    """Index of the lowest point, if the trend has risen from it for good."""
    trend, total = parts.trend, len(parts.trend)
    first, last = int(BEGINNING * total), int(0.85 * total)
    lowest = first + int(np.argmin(trend[first:]))
    if lowest > last:
        return None
    error = parts.sigma * np.sqrt(longer(parts.rest) / max(1.0, total / 16))
    rise = float(trend[-1] - trend[lowest])
    return lowest if rise > max(RISE * abs(float(trend[lowest])), 6 * error, 0.7 * parts.sigma) else None


def window_of(total: int) -> int:
    """Batches on either side that a jump is judged by."""
    return max(8, min(400, total // 50))


def differences(parts: Parts, width: int) -> FloatArray:
    """Mean of the next `width` steps less that of the `width` before, in deviations; entry i belongs to i + width. What
    stands far out counts as standing six deviations out."""
    flat = parts.trend + np.clip(parts.rest, -6 * parts.scale, 6 * parts.scale)
    means = smooth(flat, width)
    return np.asarray((means[width:] - means[:-width]) / parts.scale[width : len(flat) - width + 1])


def _sharpened(parts: Parts, place: int, width: int) -> int:
    """The step of a jump, from the split of its surroundings that leaves least."""
    flat = parts.trend + parts.rest
    first, last = max(0, place - width), min(len(flat), place + width)
    costs = {
        at: float(
            np.abs(flat[first:at] - np.median(flat[first:at])).sum()
            + np.abs(flat[at:last] - np.median(flat[at:last])).sum()
        )
        for at in range(first + 3, last - 3)
    }
    return min(costs, key=lambda at: costs[at])


def _mixture_changes(bucket: IntArray, place: int, width: int) -> bool:
    """Whether other buckets come after `place` than before: then a jump may be theirs."""
    size = int(bucket.max()) + 1
    before = np.bincount(bucket[max(0, place - width) : place], minlength=size) / width
    after = np.bincount(bucket[place : place + width], minlength=size) / width
    return bool(np.abs(before - after).sum() / 2 > 0.5)


def _flat_from_the_end(trend: FloatArray, band: float) -> int:
    away = np.flatnonzero(np.abs(trend - np.median(trend[-max(1, len(trend) // 7) :])) > band)
    return int(away[-1]) + 1 if len(away) else 0


def _longest_flat(trend: FloatArray, band: float) -> tuple[int, int]:
    """First and last index of the longest stretch whose trend stays within a band, on a grid of 200 places."""
    grid = np.unique(np.linspace(0, len(trend) - 1, 200).astype(np.int64))
    best = (0, 0)
    for start in grid.tolist():
        later = grid[grid >= start]
        inside = np.maximum.accumulate(trend[later]) - np.minimum.accumulate(trend[later]) <= band
        stop = int(later[np.flatnonzero(inside)[-1]])
        best = max(best, (start, stop), key=lambda pair: pair[1] - pair[0])
    return best
