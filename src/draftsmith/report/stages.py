"""Where the time of every stage went, over the run: the cumulative shares of metrics.jsonl, taken apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from draftsmith.report.curves import part_edges, part_means
from draftsmith.report.record import FloatArray, RunRecord

CONDITIONS = ("busy", "starved", "blocked")
NUM_PARTS = 240


@dataclass(frozen=True)
class StageShares:
    """One stage: shares [3, P] of its time busy, starved and blocked, P parts of the run; overall [3] and tokens/s."""

    name: str
    shares: FloatArray
    overall: tuple[float, float, float]
    tokens_per_s: float


@dataclass(frozen=True)
class StageTimes:
    """x: [P], the step at which each part ends."""

    x: FloatArray
    stages: tuple[StageShares, ...]
    verdict: str


def stage_times(record: RunRecord) -> StageTimes | None:
    """The flow of a run over its steps; None where it recorded none."""
    flows = [(index, flow) for index, flow in record.steps.flow if _is_whole(flow)]
    final = record.summary.get("flow")
    last = final if isinstance(final, dict) and _is_whole(final) else flows[-1][1] if flows else None
    if last is None:
        return None
    names = list(last["stages"])
    alike = [(index, flow) for index, flow in flows if list(flow["stages"]) == names]
    x = record.steps.x[[index for index, _ in alike]]
    edges = part_edges(len(alike), NUM_PARTS)
    stages = []
    for name in names:
        spent = _spent([flow for _, flow in alike], name)  # [R, 3]
        sums = [part_means(spent[:, c], edges) for c in range(3)] if alike else []
        shares = np.array(sums).reshape(3, len(edges) - 1)
        with np.errstate(invalid="ignore", divide="ignore"):
            shares = shares / shares.sum(axis=0)
        stage = last["stages"][name]
        overall = stage["busy"], stage["starved"], stage["blocked"]
        stages.append(StageShares(name, shares, overall, float(stage.get("tokens_per_s", 0.0))))
    return StageTimes(x[edges[1:] - 1] if alike else x, tuple(stages), str(last.get("verdict", "")))


def _spent(flows: list[dict[str, Any]], name: str) -> FloatArray:
    """Seconds per worker in every condition between two records, [R, 3]. A clock that starts anew is a resumed run."""
    wall = np.array([flow["wall_s"] for flow in flows], dtype=np.float64)
    so_far = np.array([[flow["stages"][name][c] for c in CONDITIONS] for flow in flows], dtype=np.float64)
    so_far = so_far.reshape(len(flows), 3) * wall[:, None]
    before = np.vstack([np.zeros((1, 3)), so_far[:-1]]) if len(flows) else so_far
    begins = np.diff(wall, prepend=0.0) < 0
    before[begins] = 0.0
    return np.maximum(so_far - before, 0.0)


def _is_whole(flow: dict[str, Any]) -> bool:
    stages = flow.get("stages")
    return (
        isinstance(flow.get("wall_s"), int | float)
        and isinstance(stages, dict)
        and bool(stages)
        and all(
            isinstance(s, dict) and all(isinstance(s.get(c), int | float) for c in CONDITIONS) for s in stages.values()
        )
    )
