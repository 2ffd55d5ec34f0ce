"""The diagnosis of a run's loss, and what a page shows of it: trend, levels as distributions, spectrum."""

from __future__ import annotations

from typing import Any

import numpy as np

from draftsmith.report.diagnosis import Curve, Diagnosis, diagnose
from draftsmith.report.diagnosis.rhythm import background
from draftsmith.report.record import IntArray, RunRecord

NUM_TREND_POINTS, NUM_BINS, NUM_FREQUENCIES = 300, 72, 260
NUM_REPEATS_SHOWN = 4  # what comes back less often than this in a run is its trend


def diagnosis_of(record: RunRecord) -> Diagnosis:
    """Diagnose the loss of a run."""
    steps = record.steps
    resumed = [event.get("step") for event in record.events if event.get("event") == "resume"]
    restarts = [int(np.searchsorted(steps.x, step, side="right")) for step in resumed if isinstance(step, int)]
    curve = Curve(
        loss=steps.loss,
        x=steps.x,
        bucket=steps.bucket,
        epoch=steps.epoch,
        lr_factor=steps.lr_factor,
        restarts=tuple(restarts),
        policy=str(record.batching.get("order", "")),
    )
    return diagnose(curve)


def drawn(found: Diagnosis) -> dict[str, Any] | None:
    """What is plotted of a diagnosis, as small arrays; None where there were too few losses."""
    parts, spectrum = found.parts, found.spectrum
    if parts is None or spectrum is None:
        return None
    places = np.unique(np.linspace(0, len(parts.trend) - 1, NUM_TREND_POINTS).astype(np.int64))
    bucket = np.maximum(found.curve.bucket[found.index], 0)
    around = parts.effect + parts.rest
    low, high = np.quantile(around, [0.002, 0.998])
    margin = 0.1 * max(high - low, 1e-9)
    bins = np.linspace(low - margin, high + margin, NUM_BINS + 1)
    counts = [np.histogram(around[bucket == b], bins)[0] for b in range(len(parts.effects))]
    noise = background(spectrum.frequency, spectrum.power_without_buckets)
    edges = _factors(len(spectrum.frequency), first=NUM_REPEATS_SHOWN)
    return {
        "trend": {"x": found.curve.x[found.index[places]], "values": parts.trend[places]},
        "levels": {"x": (bins[1:] + bins[:-1]) / 2, "counts": np.array(counts, dtype=np.float64)},
        "spectrum": {
            "period": 1 / np.sqrt(spectrum.frequency[edges[:-1]] * spectrum.frequency[edges[1:] - 1])[::-1],
            "power": np.maximum.reduceat(spectrum.power / noise, edges[:-1])[::-1],
            "without": np.maximum.reduceat(spectrum.power_without_buckets / noise, edges[:-1])[::-1],
        },
    }


def _factors(total: int, *, first: int) -> IntArray:
    """Edges of parts of `total` frequencies that widen by equal factors; those before `first` are in none."""
    return np.unique(np.geomspace(min(first, total - 1), total, min(NUM_FREQUENCIES, total)).astype(np.int64))
