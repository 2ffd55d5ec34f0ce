"""What an order does, in numbers: drift, runs, exhaustion, windows, periodicity. O(N K), one bucket at a time.

Shares are those of the counts; "in units of batches" means how many batches a bucket is away from its share.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from draftsmith.plan.deal import Deal
from draftsmith.plan.keyed import IntArray
from draftsmith.plan.orders.base import BucketArray, min_adjacent_repeats, min_longest_run

NUM_LAGS = 50


@dataclass(frozen=True)
class OrderAudit:
    """One order, measured. Per-bucket tuples have length K; a bucket without batches has 0 everywhere.

    max_drift: largest distance from the share, in batches, attained by drift_bucket after drift_step steps.
    tail: length of the final run. first, last: steps of a bucket's first and last batch. exhaustion: (last + 1) / N.
    early_rate: share of a bucket in the first tenth. mean_run: batches per run. windows: length -> worst deviation of
    any bucket in any window of that many batches. autocorrelation: lags 1-50 of "same bucket", 0 for a shuffle, 1 for
    a period. spectral_peak: largest power over mean power, of the worst bucket's indicator. overlap: share of steps
    with the bucket of the previous epoch, if given; expected_overlap: of independent epochs. is_complete: every bucket
    comes exactly as often as counted.
    """

    max_drift: float
    drift_bucket: int
    drift_step: int
    longest_run: int
    min_longest_run: int
    adjacent_repeats: int
    min_adjacent_repeats: int
    tail: int
    first: tuple[int, ...]
    last: tuple[int, ...]
    exhaustion: tuple[float, ...]
    early_rate: tuple[float, ...]
    mean_run: tuple[float, ...]
    windows: dict[int, float]
    autocorrelation: tuple[float, ...]
    spectral_peak: float
    overlap: float | None
    expected_overlap: float
    is_complete: bool
    order_sha256: str


@dataclass(frozen=True)
class RankAudit:
    """What one rank sees: steps, and its own drift from the global shares, repeats and longest run."""

    rank: int
    steps: int
    max_drift: float
    adjacent_repeats: int
    longest_run: int


def audit_order(
    sequence: BucketArray,
    counts: Sequence[int],
    *,
    windows: Sequence[int] = (8, 32),
    previous: BucketArray | None = None,
) -> OrderAudit:
    """Measure an order (bucket of every step, [N]) against its counts; previous: the order of the epoch before."""
    total, num_buckets = len(sequence), len(counts)
    drifts = [_drift(sequence, bucket, counts[bucket]) for bucket in range(num_buckets)]
    worst = max(range(num_buckets), key=lambda bucket: drifts[bucket][0])
    run_buckets, run_lengths = _runs(sequence)
    runs_of = np.bincount(run_buckets, minlength=num_buckets)
    places = [np.flatnonzero(sequence == bucket) for bucket in range(num_buckets)]
    tenth = max(1, total // 10)
    early = np.bincount(sequence[:tenth], minlength=num_buckets) / tenth
    expected = sum(count * count for count in counts) / total**2
    return OrderAudit(
        max_drift=drifts[worst][0],
        drift_bucket=worst,
        drift_step=drifts[worst][1],
        longest_run=int(run_lengths.max()),
        min_longest_run=min_longest_run(counts),
        adjacent_repeats=total - len(run_lengths),
        min_adjacent_repeats=min_adjacent_repeats(counts),
        tail=int(run_lengths[-1]),
        first=tuple(int(place[0]) if len(place) else 0 for place in places),
        last=tuple(int(place[-1]) if len(place) else 0 for place in places),
        exhaustion=tuple((int(place[-1]) + 1) / total if len(place) else 0.0 for place in places),
        early_rate=tuple(early.tolist()),
        mean_run=tuple(len(place) / max(1, int(runs)) for place, runs in zip(places, runs_of, strict=True)),
        windows={size: _window_deviation(sequence, counts, size) for size in sorted({*windows}) if size <= total},
        autocorrelation=tuple(_autocorrelation(sequence, lag, expected) for lag in range(1, NUM_LAGS + 1)),
        spectral_peak=max(_spectral_peak(sequence == bucket) for bucket in range(num_buckets)),
        overlap=None if previous is None else _overlap(sequence, previous),
        expected_overlap=expected,
        is_complete=np.bincount(sequence, minlength=num_buckets).tolist() == [int(count) for count in counts],
        order_sha256=hashlib.sha256(sequence.astype("<u2").tobytes()).hexdigest(),
    )


def audit_ranks(order: BucketArray, counts: Sequence[int], deal: Deal) -> list[RankAudit]:
    """Measure every rank's own sequence against the shares of the whole epoch."""
    audits = []
    for rank in range(deal.batches.shape[1]):
        sequence = order[deal.batches[:, rank]]
        lengths = _runs(sequence)[1]
        drift = max(_drift(sequence, bucket, count, sum(counts))[0] for bucket, count in enumerate(counts))
        audits.append(RankAudit(rank, len(sequence), drift, len(sequence) - len(lengths), int(lengths.max())))
    return audits


def lags_of(sequence: BucketArray, bucket: int, count: int, total: int | None = None) -> IntArray:
    """t * count - x(t) * total after every step t, the bucket's lag in units of 1 / total batch. int64 [N]."""
    steps = np.arange(1, len(sequence) + 1, dtype=np.int64)
    return steps * count - np.cumsum(sequence == bucket, dtype=np.int64) * (total or len(sequence))


def _drift(sequence: BucketArray, bucket: int, count: int, total: int | None = None) -> tuple[float, int]:
    lag = np.abs(lags_of(sequence, bucket, count, total))
    at = int(np.argmax(lag))
    return int(lag[at]) / (total or len(sequence)), at + 1


def _runs(sequence: BucketArray) -> tuple[IntArray, IntArray]:
    """(bucket, length) of every run."""
    starts = np.concatenate([[0], np.flatnonzero(sequence[1:] != sequence[:-1]) + 1])
    return sequence[starts].astype(np.int64), np.diff(np.concatenate([starts, [len(sequence)]]))


def _window_deviation(sequence: BucketArray, counts: Sequence[int], size: int) -> float:
    worst, total = 0, len(sequence)
    for bucket, count in enumerate(counts):
        seen = np.concatenate([[0], np.cumsum(sequence == bucket, dtype=np.int64)])
        worst = max(worst, int(np.abs((seen[size:] - seen[:-size]) * total - size * count).max()))
    return worst / total


def _autocorrelation(sequence: BucketArray, lag: int, expected: float) -> float:
    if lag >= len(sequence) or expected >= 1:
        return 0.0
    return (float(np.mean(sequence[lag:] == sequence[:-lag])) - expected) / (1 - expected)


def _spectral_peak(indicator: np.typing.NDArray[np.bool_]) -> float:
    """Largest over mean power of the spectrum without its mean; about ln(N) for noise, large for a regular rhythm."""
    power = np.abs(np.fft.rfft(indicator - indicator.mean())[1:]) ** 2
    mean = float(power.mean()) if len(power) else 0.0
    return float(power.max()) / mean if mean > 1e-12 else 0.0


def _overlap(sequence: BucketArray, previous: BucketArray) -> float:
    shared = min(len(sequence), len(previous))
    return float(np.mean(sequence[:shared] == previous[:shared]))
