"""Rows as a run writes them, for views and for files."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from draftsmith.flow import FlowStats, StageStats

Row = dict[str, Any]


def metrics_row(step: int, **changes: Any) -> Row:
    return {
        "time": 1000.0 + step,
        "epoch": 0,
        "seq": step,
        "bucket": step % 3,
        "progress": step / 100,
        "step": step,
        "loss": 3.0 - 0.01 * step,
        "acceptance": 1.0 + 0.01 * step,
        "accuracy_by_slot": [0.5, 0.25],
        "grad_norm": 0.5,
        "lr_factor": 0.5,
        "num_blocks": 8,
        "num_tokens": 100,
        "skipped": False,
        **changes,
    }


def event_row(kind: str, at: float, **changes: Any) -> Row:
    return {"time": at, "event": kind, **changes}


def flow_stats(wall_s: float = 100.0, *, busy: float = 0.9, names: Iterable[str] = ("plan", "target")) -> FlowStats:
    """A pipeline whose last stage, the trainer, is busy 30 % of its time, and the one before `busy`."""
    waits = (1 - busy) * wall_s
    stages = [
        StageStats(name, 1, 10, 5000, 0, busy * wall_s, waits / 2, waits / 2, 3, 2_000_000, max_items=4)
        for name in names
    ]
    stages.append(StageStats("training", 1, 10, 5000, 0, 0.3 * wall_s, 0.7 * wall_s, 0.0, 0, 0))
    return FlowStats(tuple(stages), wall_s, 4_000_000, 8_000_000, 100_000_000, 0.0, "tokens")


def write_rows(path: Path, rows: Iterable[Row]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path
