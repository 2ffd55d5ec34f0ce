"""What comes back after a fixed number of steps, and whether the order of the buckets, or the learning rate, is why."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from draftsmith.report.diagnosis.decompose import Parts, smooth
from draftsmith.report.record import FloatArray, IntArray

FALSE_ALARM = 1e-5  # chance that noise alone makes a line
MIN_REPEATS = 8
NUM_QUARTERS = 4
LASTING = 0.4  # amplitude of the second weakest quarter of the run, against the strongest
EXPLAINED = 0.7
NEIGHBOURS = 1.35  # a line is compared with the frequencies within this factor
MIN_LENGTH = 64


@dataclass(frozen=True)
class Rhythm:
    """period: in batches. strength: power over that of its neighbours. cause: "buckets", "learning rate" or ""."""

    period: float
    strength: float
    cause: str


@dataclass(frozen=True)
class Spectrum:
    """Power over frequency (cycles per batch), 1 where the noise around is; with and without the buckets' effect."""

    frequency: FloatArray
    power: FloatArray
    power_without_buckets: FloatArray


def spectrum_of(parts: Parts) -> Spectrum:
    """Periodograms of what is left when the trend is gone, deviations of equal size everywhere."""
    with_buckets = _power(_without_slow((parts.effect + parts.rest) / parts.scale))
    without = _power(_without_slow(parts.rest / parts.scale))
    frequency = np.arange(len(with_buckets)) / (2 * (len(with_buckets) - 1))
    return Spectrum(frequency[1:], with_buckets[1:], without[1:])


def strongest_rhythm(parts: Parts, spectrum: Spectrum, lr_factor: FloatArray, bucket: IntArray) -> Rhythm | None:
    """The strongest line that noise would not make and that lasts, or None.

    Buckets are its cause if it is gone without their effects, or if they come and go with this very period: what a
    model learns and forgets between two visits of a bucket is no constant effect.
    """
    num_steps = len(parts.rest)
    if num_steps < MIN_LENGTH:
        return None
    without, whole = parts.rest / parts.scale, (parts.effect + parts.rest) / parts.scale
    for power, values, cause in ((spectrum.power_without_buckets, without, ""), (spectrum.power, whole, "buckets")):
        at, strength = _strongest(spectrum.frequency, power, num_steps)
        frequency = float(spectrum.frequency[at])
        if strength < np.log2(len(power) / FALSE_ALARM) or not _lasts(values, frequency):
            continue
        if not cause and _follows(lr_factor, frequency):
            cause = "learning rate"
        elif not cause and _comes_with(bucket, spectrum.frequency, at):
            cause = "buckets"
        elif cause and _near(spectrum.power_without_buckets, at) > (1 - EXPLAINED) * _near(spectrum.power, at):
            continue
        return Rhythm(1 / frequency, strength, cause)
    return None


def of_whole_epochs(rhythm: Rhythm, bucket: IntArray, epoch: IntArray) -> Rhythm:
    """A rhythm of the buckets with the period after which the same ones come again: its own, or that of an epoch, of
    which its own may be a fraction."""
    beginnings = np.flatnonzero(np.diff(epoch)) + 1
    if len(beginnings) < 2:
        return rhythm
    whole = round(float(np.median(np.diff(beginnings))))
    own = max(1, round(rhythm.period))
    again = {lag: float(np.mean(bucket[lag:] == bucket[:-lag])) for lag in (own, whole)}
    return replace(rhythm, period=float(whole)) if again[whole] > 1.1 * again[own] else rhythm


def _without_slow(values: FloatArray) -> FloatArray:
    """Without what takes longer than a rhythm may: the running mean over two of the longest periods."""
    width = max(3, 2 * len(values) // MIN_REPEATS) | 1
    padded = np.pad(np.clip(values, -8, 8), width // 2, mode="reflect")
    return np.asarray(np.clip(values, -8, 8) - smooth(padded, width))


def _lasts(values: FloatArray, frequency: float) -> bool:
    """Whether a rhythm is there all along, and is not one event that a spectrum spreads over all time."""
    turning = _without_slow(values) * np.exp(-2j * np.pi * frequency * np.arange(len(values)))
    amplitudes = sorted(abs(part.mean()) for part in np.array_split(turning, NUM_QUARTERS))
    return bool(amplitudes[1] > LASTING * amplitudes[-1])


def _comes_with(bucket: IntArray, frequency: FloatArray, at: int) -> bool:
    """Whether some bucket itself has a line at this frequency."""
    for number in np.unique(bucket).tolist():
        power = _power((bucket == number).astype(np.float64))[1:]
        nearby = float((power / background(frequency, power))[max(0, at - 1) : at + 2].max())
        if nearby > np.log2(len(power) / FALSE_ALARM):
            return True
    return False


def _power(values: FloatArray) -> FloatArray:
    window = np.hanning(len(values))
    return np.asarray(np.abs(np.fft.rfft((values - values.mean()) * window)) ** 2 / (window**2).sum())


def _strongest(frequency: FloatArray, power: FloatArray, num_steps: int) -> tuple[int, float]:
    """Index and strength of the frequency that stands out most; those with too few repeats do not count."""
    first = int(np.searchsorted(frequency, MIN_REPEATS / num_steps))
    strength = power / background(frequency, power)
    at = first + int(np.argmax(strength[first:]))
    return at, float(strength[at])


def background(frequency: FloatArray, power: FloatArray) -> FloatArray:
    """Median power near every frequency, on a scale of factors: noise with memory has more of it at low ones."""
    num_bands = max(1, int(np.log(frequency[-1] / frequency[0]) / np.log(NEIGHBOURS)))
    edges = np.unique(np.geomspace(1, len(power) + 1, num_bands + 1).astype(np.int64)) - 1
    merged = [0]
    for edge in edges[1:].tolist():
        if edge - merged[-1] >= 40 or edge == edges[-1]:
            merged.append(edge)
    middles = [np.sqrt(frequency[a] * frequency[b - 1]) for a, b in pairwise(merged)]
    medians = [max(float(np.median(power[a:b])), 1e-300) for a, b in pairwise(merged)]
    return np.asarray(np.exp(np.interp(np.log(frequency), np.log(middles), np.log(medians))))


def _near(power: FloatArray, at: int) -> float:
    return float(power[max(0, at - 2) : at + 3].sum())


def _follows(lr_factor: FloatArray, frequency: float) -> bool:
    """Whether the learning rate swings with this frequency."""
    if not np.isfinite(lr_factor).all() or float(np.ptp(lr_factor)) < 1e-3:
        return False
    slope = lr_factor - np.linspace(lr_factor[0], lr_factor[-1], len(lr_factor))
    power = _power(slope / max(float(np.std(slope)), 1e-12))[1:]
    places = np.arange(1, len(power) + 1) / (2 * len(power))
    at = int(np.argmin(np.abs(places - frequency)))
    return bool(_near(power, at) > 0.2 * power.sum())
