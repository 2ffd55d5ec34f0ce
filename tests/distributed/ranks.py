"""What tests of several processes share: something that happens to one of them, and what a run has left."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import draftsmith.run.launching as launching
from draftsmith.training import load_checkpoint
from helpers import Finished

TWO = "distributed.num_processes=2"
RANK = "from draftsmith.run.rank import main; main()"
# What happens in one rank, once: `marker` tells later starts that it has happened.
PATCHED = """
import os, signal
import draftsmith.run.loop as loop
marker, original = {marker!r}, loop.add_batch
def add_batch(state, item, *arguments, **settings):
    figures = original(state, item, *arguments, **settings)
    if os.environ["RANK"] == {rank!r} and state.step == {step} and not os.path.exists(marker):
        open(marker, "w").close()
        {what}
    return figures
loop.add_batch = add_batch
"""
Train = Callable[..., tuple[Finished, Path]]


def happens(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, what: str, *, rank: int, step: int) -> Path:
    """In this rank, once, after a batch of this step."""
    marker = tmp_path / "happened"
    code = PATCHED.format(marker=str(marker), rank=str(rank), step=step, what=what) + RANK
    monkeypatch.setattr(launching, "COMMAND", (sys.executable, "-c", code))
    return marker


def hash_of(run: Path) -> str:
    return str(json.loads((run / "summary.json").read_text(encoding="utf-8"))["params_sha256"])


def rows_of(run: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return [{name: line[name] for name in line if name not in ("time", "flow", "measured_s")} for line in lines]


def events_of(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "events.jsonl").read_text(encoding="utf-8").splitlines()]


def assert_close(one: Path, other: Path) -> None:
    first, second = (dict(load_checkpoint(run)[0].named_parameters()) for run in (one, other))
    for name, parameter in first.items():
        torch.testing.assert_close(parameter, second[name], rtol=0, atol=1e-5)
