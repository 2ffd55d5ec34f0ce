"""One line for every length bucket: batches, padding, budget left unused, loss, acceptance."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from draftsmith.report.record import UNKNOWN, FloatArray, RunRecord, Steps


@dataclass(frozen=True)
class BucketLine:
    """padding: share of the computed slots that hold no token; unused: share of the token budget that does not, padding
    included; NaN where not recorded. loss, acceptance: means over the last quarter of the run. top: longest row."""

    bucket: int
    top: int | None
    num_batches: int
    share_of_tokens: float
    padding: float
    unused: float
    loss: float
    acceptance: float


def bucket_lines(record: RunRecord) -> list[BucketLine]:
    """Lines of the buckets that were trained on; empty where buckets were not recorded."""
    steps = record.steps
    if not len(steps) or (steps.bucket == UNKNOWN).any():
        return []
    budget = float(record.batching.get("max_tokens", np.nan))
    edges = (record.last_event("start") or {}).get("bucket_edges")
    tops = edges if isinstance(edges, list) else []
    late = np.arange(len(steps)) >= len(steps) * 3 // 4
    lines = []
    for bucket in np.unique(steps.bucket).tolist():
        mine = steps.bucket == bucket
        lines.append(
            BucketLine(
                bucket=bucket,
                top=int(tops[bucket]) if bucket < len(tops) else None,
                num_batches=int(mine.sum()),
                share_of_tokens=_ratio(steps.num_tokens[mine], steps.num_tokens),
                padding=padding_share(steps, mine),
                unused=1 - _ratio(steps.num_tokens[mine], np.full(int(mine.sum()), budget)),
                loss=_mean(steps.loss[mine & late]),
                acceptance=_mean(steps.acceptance[mine & late]),
            )
        )
    return lines


def padding_share(steps: Steps, which: npt.NDArray[np.bool_]) -> float:
    """Share of the computed slots of some batches that hold no token."""
    return 1 - _ratio(steps.num_tokens[which], steps.num_slots[which])


def _ratio(part: FloatArray, whole: FloatArray) -> float:
    total = float(whole.sum())
    return float(part.sum()) / total if total > 0 else float("nan")


def _mean(values: FloatArray) -> float:
    usable = values[np.isfinite(values)]
    return float(usable.mean()) if len(usable) else float("nan")
