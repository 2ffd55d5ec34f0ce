"""Does the loss stand on several levels, and are these the buckets'?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from draftsmith.report.diagnosis.decompose import Parts, longer, spread
from draftsmith.report.record import FloatArray, IntArray

APART = 2.0  # two levels are seen as two when they are further apart than this many deviations of the noise
MIN_SHARE = 0.1  # of the variation, from which on buckets are said to differ
MIN_BATCHES = 5
STRETCH = 4


@dataclass(frozen=True)
class BucketEffect:
    """share: of the variation around the trend that is the buckets'. groups: buckets of every level, lowest first; one
    group where levels run into each other. levels: [groups] mean effect of each, in units of loss."""

    share: float
    groups: tuple[tuple[int, ...], ...]
    levels: tuple[float, ...]
    spread: float


def bucket_effect(parts: Parts, bucket: IntArray) -> BucketEffect | None:
    """What buckets do to the loss; None where they do not differ by more than chance would have it."""
    counts = np.bincount(bucket, minlength=len(parts.effects))
    usable = [b for b in np.argsort(parts.effects, kind="stable").tolist() if counts[b] >= MIN_BATCHES]
    if len(usable) < 2:
        return None
    share = _adjusted_share(parts, len(usable))
    if share < MIN_SHARE or not _is_no_chance(parts, bucket, usable):
        return None
    groups = _grouped(parts.effects[usable], usable, parts.sigma)
    levels = [float((parts.effects[list(g)] * counts[list(g)]).sum() / counts[list(g)].sum()) for g in groups]
    reach = float(parts.effects[usable[-1]] - parts.effects[usable[0]])
    return BucketEffect(share, groups, tuple(levels), reach)


def hidden_modes(parts: Parts) -> float | None:
    """Distance of two levels in the rest between which steps go back and forth, explained by no bucket, or None."""
    # Two levels make the deviation nearby a poor measure, one deviation for all makes it poor where noise shrinks.
    for scale in (parts.scale, np.full(len(parts.rest), parts.sigma)):
        apart = _two_levels(parts.rest / scale)
        if apart is not None:
            return apart * float(np.median(scale))
    return None


def _two_levels(values: FloatArray) -> float | None:
    """Distance of two peaks with a valley between them that values cross all the time, or None."""
    values = values[np.abs(values) < 8]
    if len(values) < 100:
        return None
    low, high, width_low, width_high, weight = _two_normals(values)
    if not 0.1 < weight < 0.9 or (high - low) < APART * 0.75 * (width_low + width_high):
        return None
    middle, reach = (low * width_high + high * width_low) / (width_low + width_high), 0.15 * (high - low)
    valley, peaks = _around(values, middle, reach), (_around(values, low, reach), _around(values, high, reach))
    if valley > 0.7 * min(peaks) or min(peaks) - valley < 5 * np.sqrt(min(peaks)):
        return None
    above = values > middle
    changes, share = float(np.count_nonzero(np.diff(above))), float(above.mean())
    if changes < 0.4 * 2 * share * (1 - share) * len(values):
        return None  # it stays on one side for long: a change in time, not two kinds of samples
    return high - low


def _adjusted_share(parts: Parts, num_used: int) -> float:
    """Robust share of variation, corrected for what so many free effects would explain of pure noise."""
    around, left = parts.effect + parts.rest, parts.rest
    total = float(np.var(_clipped(around)))
    rest = float(np.var(_clipped(left)))
    return 1 - (rest / max(total, 1e-300)) * (len(left) - 1) / max(1, len(left) - num_used)


def _is_no_chance(parts: Parts, bucket: IntArray, usable: list[int]) -> bool:
    """Whether effects are larger than their own errors make them. A long stretch of one bucket tells little of it, for
    the trend may be what changed: it counts as no more than STRETCH batches."""
    starts = np.flatnonzero(np.diff(bucket, prepend=bucket[0] - 1))
    lengths = np.minimum(np.diff(np.append(starts, len(bucket))), STRETCH)
    counts = np.bincount(bucket[starts], weights=lengths, minlength=len(parts.effects))
    chi2 = sum(counts[b] * (parts.effects[b] / parts.sigma) ** 2 for b in usable) / longer(parts.rest)
    freedom = len(usable) - 1
    return bool(chi2 > freedom + 6 * np.sqrt(2 * freedom))


def _clipped(values: FloatArray) -> FloatArray:
    width = 5 * spread(values)
    return np.clip(values, np.median(values) - width, np.median(values) + width)


def _grouped(effects: FloatArray, names: list[int], sigma: float) -> tuple[tuple[int, ...], ...]:
    """Cut sorted effects where gaps between levels are largest against those within; no level without a visible gap."""
    gaps = np.diff(effects)
    best, best_ratio = 1, APART
    for size in range(2, len(names) + 1):
        order = np.sort(gaps)[::-1]
        between, within = order[size - 2], order[size - 1] if size - 1 < len(order) else 0.0
        ratio = between / max(within, sigma)
        if ratio > best_ratio:
            best, best_ratio = size, ratio
    cuts = np.sort(np.argsort(-gaps, kind="stable")[: best - 1]) + 1
    return tuple(tuple(sorted(part.tolist())) for part in np.split(np.array(names), cuts))


def _two_normals(values: FloatArray) -> tuple[float, float, float, float, float]:
    """Means, widths and the weight of the lower of two normal distributions, by expectation and maximisation."""
    low, high = np.quantile(values, [0.2, 0.8])
    width_low = width_high = max(float(np.std(values)) / 2, 1e-6)
    weight = 0.5
    for _ in range(60):
        a = weight / width_low * np.exp(-0.5 * ((values - low) / width_low) ** 2)
        b = (1 - weight) / width_high * np.exp(-0.5 * ((values - high) / width_high) ** 2)
        chance = a / np.maximum(a + b, 1e-300)
        total = float(chance.sum())
        if not 1 < total < len(values) - 1:
            break
        low, high = (chance @ values) / total, ((1 - chance) @ values) / (len(values) - total)
        width_low = max(float(np.sqrt(chance @ (values - low) ** 2 / total)), 1e-6)
        width_high = max(float(np.sqrt((1 - chance) @ (values - high) ** 2 / (len(values) - total))), 1e-6)
        weight = total / len(values)
    return float(low), float(high), width_low, width_high, weight


def _around(values: FloatArray, place: float, reach: float) -> int:
    return int(np.count_nonzero(np.abs(values - place) < reach))
