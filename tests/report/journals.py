"""Run directories made by hand: what a training would have left, in any state of disrepair."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

START = 1_800_000_000.0


def step_line(index: int, **changes: Any) -> dict[str, Any]:
    """Line `index` (from 0) of metrics.jsonl, as training writes it, with the named values changed."""
    line: dict[str, Any] = {
        "time": START + index * 0.05,
        "epoch": 0,
        "seq": index,
        "bucket": index % 3,
        "num_slots": 1000,
        "step": index + 1,
        "loss": 2.0 + 3.0 / (1 + index),
        "acceptance": 3.5,
        "accuracy_by_slot": [0.8, 0.6, 0.4],
        "grad_norm": 1.5,
        "lr_factor": 1.0,
        "num_blocks": 40,
        "num_tokens": 900,
        "skipped": False,
    }
    return {**line, **changes}


def write_run(
    run: Path,
    lines: Iterable[Mapping[str, Any]] = (),
    *,
    events: Iterable[Mapping[str, Any]] = (),
    torn: str = "",
    summary: Mapping[str, Any] | None = None,
) -> Path:
    """A run directory with these lines; `torn` is what stands after the last newline of metrics.jsonl."""
    run.mkdir(parents=True, exist_ok=True)
    (run / "config.toml").write_text('seed = 0\n[batching]\norder = "quota"\nmax_tokens = 1024\n', encoding="utf-8")
    (run / "environment.json").write_text(json.dumps({"target": "tiny-random", "cores": 2}), encoding="utf-8")
    for name, rows, rest in (("metrics", lines, torn), ("events", events, "")):
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (run / f"{name}.jsonl").write_text(text + rest, encoding="utf-8")
    if summary is not None:
        (run / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
    return run


def flow_record(wall_s: float, **shares: tuple[float, float, float]) -> dict[str, Any]:
    """What a line says about the flow: cumulative busy, starved, blocked of every stage."""
    stages = {
        name: {"workers": 1, "busy": b, "starved": s, "blocked": r, "tokens_per_s": 100.0}
        for name, (b, s, r) in shares.items()
    }
    return {"wall_s": wall_s, "verdict": "training is the bottleneck: busy 90%", "stages": stages}


def long_lines(num_steps: int, *, seed: int = 0, num_buckets: int = 6) -> list[dict[str, Any]]:
    """Lines of a plausible long run: a falling loss with levels by bucket and a few spikes."""
    rng = np.random.default_rng(seed)
    buckets = rng.integers(0, num_buckets, num_steps)
    places = np.arange(num_steps)
    loss = 1.5 + 4 / (1 + places / 200) ** 0.5 + 0.15 * buckets + rng.normal(0, 0.08, num_steps)
    loss[rng.integers(0, num_steps, 5)] += 3
    made = []
    for i in places.tolist():
        slots = [float(max(0.0, 0.9 - 0.08 * slot - 0.3 / (1 + i / 500))) for slot in range(7)]
        flow = {
            "flow": flow_record(
                0.05 * (i + 1), plan=(0.02, 0.0, 0.98), target=(0.6, 0.1, 0.3), training=(0.95, 0.05, 0)
            )
        }
        made.append(
            step_line(
                i,
                epoch=i // 20_000,
                seq=i % 20_000,
                bucket=int(buckets[i]),
                loss=float(loss[i]),
                acceptance=float(4.5 - 2 / (1 + i / 800) ** 0.5 + rng.normal(0, 0.2)),
                accuracy_by_slot=slots,
                grad_norm=float(np.exp(rng.normal(0, 0.3))),
                lr_factor=float(0.55 + 0.45 * np.cos(np.pi * i / num_steps)),
                **(flow if i % 10 == 9 else {}),
            )
        )
    return made
