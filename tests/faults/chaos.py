"""Runs that are killed from outside, at random moments, and started again: what hits them, and what must be left."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

import draftsmith.run.loop as loop_module


@dataclasses.dataclass(frozen=True)
class Ending:
    """What a finished run amounts to: hashes of every byte that training made, and its logs without times."""

    weights: str
    moments: str
    samples: str
    counts: Mapping[str, Any]
    metrics: Sequence[Mapping[str, Any]]


def ending_of(run: Path) -> Ending:
    newest = max((run / "checkpoints").glob("step-??????"))
    record = json.loads((newest / "state.json").read_text(encoding="utf-8"))
    kept = ("step", "counts", "guards", "acceptance", "position")
    return Ending(
        weights=_sha256(newest / "drafter.safetensors"),
        moments=_sha256(newest / "optimizer.safetensors"),
        samples=_sha256(run / "samples.jsonl"),
        counts={name: record[name] for name in kept},
        metrics=[
            {name: value for name, value in line.items() if name not in ("time", "flow")}
            for line in lines_of(run / "metrics.jsonl")
        ],
    )


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def processes_of_group(group: int) -> list[int]:
    """Who is still there of a process group."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[2]) == group and fields[0] != "Z":
            found.append(int(stat.parent.name))
    return found


def leftovers(run: Path) -> list[str]:
    """Half-written things anywhere in a run directory."""
    return [str(path) for path in run.rglob("*") if any(f".{kind}-" in path.name for kind in ("tmp", "old", "partial"))]


def wait_until(holds: Any, timeout_s: float = 60.0) -> bool:
    """Wait for a condition of another process that only its files tell."""
    deadline = time.monotonic() + timeout_s
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def events_of(run: Path, kind: str) -> list[dict[str, Any]]:
    return [line for line in lines_of(run / "events.jsonl") if line["event"] == kind]


def stop_after(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """Send SIGTERM to this process in the middle of a step, as a supervisor would."""
    original = loop_module.take_step

    def stopping(state: Any, *arguments: Any, **settings: Any) -> Any:
        metrics = original(state, *arguments, **settings)
        if state.step == step and not state.pending.num_batches:
            os.kill(os.getpid(), signal.SIGTERM)
        return metrics

    monkeypatch.setattr(loop_module, "take_step", stopping)
