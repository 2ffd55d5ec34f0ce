"""The order that a run really trained in: distance of each bucket from its share, what remained of it, the verdict."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from draftsmith.plan import audit_order
from draftsmith.plan.audit import lags_of
from draftsmith.plan.verdict import judge
from draftsmith.report.record import UNKNOWN, FloatArray, IntArray, RunRecord

NUM_POINTS = 500


@dataclass(frozen=True)
class TrainedOrder:
    """drift: [K, P], batches ahead (+) or behind (-) of the bucket's share of its epoch; the extreme of each part.
    remaining: [K, P], share of the bucket's batches of the epoch that are still to come. x: [P].

    counts: batches of every bucket in an epoch, as planned, or as seen where the plan did not say.
    """

    counts: tuple[int, ...]
    x: FloatArray
    drift: FloatArray
    remaining: FloatArray
    max_drift: float
    grade: str
    text: str


def trained_order(record: RunRecord) -> TrainedOrder | None:
    """What the buckets of the steps say; None where nothing was trained or buckets were not recorded."""
    steps = record.steps
    if not len(steps) or (steps.bucket == UNKNOWN).any():
        return None
    counts = planned_counts(record)
    drift, remaining = [], []
    for epoch in np.unique(steps.epoch):
        sequence = steps.bucket[steps.epoch == epoch]
        of_epoch = _counts_of_epoch(counts, sequence)
        total = int(of_epoch.sum())
        lags = [lags_of(sequence, bucket, int(count), total) for bucket, count in enumerate(of_epoch)]
        drift.append(-np.array(lags) / total)
        seen = np.cumsum(sequence[None] == np.arange(len(counts))[:, None], axis=1)
        with np.errstate(invalid="ignore", divide="ignore"):
            remaining.append(1 - seen / of_epoch[:, None])
    every_drift, every_remaining = np.concatenate(drift, axis=1), np.concatenate(remaining, axis=1)
    places = _extreme_places(every_drift)
    grade, text = _verdict(record, counts)
    return TrainedOrder(
        counts=tuple(int(count) for count in counts),
        x=steps.x[places],
        drift=every_drift[:, places],
        remaining=every_remaining[:, places],
        max_drift=float(np.abs(every_drift).max()),
        grade=grade,
        text=text,
    )


def planned_counts(record: RunRecord) -> IntArray:
    """Batches of every bucket in the first epoch: what the start event says, else what was seen in it."""
    steps = record.steps
    seen = np.bincount(steps.bucket[steps.epoch == steps.epoch[0]], minlength=int(steps.bucket.max()) + 1)
    start = record.last_event("start") or {}
    planned = start.get("bucket_batches")
    if isinstance(planned, list) and len(planned) >= len(seen) and all(isinstance(c, int) and c >= 0 for c in planned):
        return np.maximum(np.array(planned, dtype=np.int64), np.pad(seen, (0, len(planned) - len(seen))))
    return seen.astype(np.int64)


def _counts_of_epoch(counts: IntArray, sequence: IntArray) -> IntArray:
    """An epoch may hold a few batches more of a bucket than the first one did."""
    return np.maximum(counts, np.bincount(sequence, minlength=len(counts)))


def _extreme_places(drift: FloatArray) -> IntArray:
    """One step of every part: that at which some bucket is furthest from its share."""
    worst = np.abs(drift).max(axis=0)
    edges = np.linspace(0, len(worst), min(NUM_POINTS, len(worst)) + 1).astype(np.int64)
    places = [a + int(np.argmax(worst[a:b])) for a, b in pairwise(edges.tolist())]
    return np.unique([0, *places, len(worst) - 1])


def _verdict(record: RunRecord, counts: IntArray) -> tuple[str, str]:
    """The planner's own verdict on the first epoch, or what can be said of its beginning."""
    steps = record.steps
    sequence = steps.bucket[steps.epoch == steps.epoch[0]]
    policy = str(record.batching.get("order", "order"))
    if np.bincount(sequence, minlength=len(counts)).tolist() == counts.tolist():
        verdict = judge(policy, audit_order(sequence.astype(np.uint8), counts.tolist()), counts.tolist())
        return verdict.grade, verdict.text
    text = f"{policy}: {len(sequence):,} of the {int(counts.sum()):,} batches of an epoch have been trained so far."
    return "unfinished", text
