"""What a run left on disk, read as it is: empty, cut in the middle of a line, still growing, or of another version.

Only a directory that holds no run at all is an error. Whatever else cannot be read is named in `remarks`.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from draftsmith.errors import CheckpointError
from draftsmith.observe import row_of

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

NUMBERS = ("time", "loss", "acceptance", "grad_norm", "lr_factor", "num_blocks", "num_tokens", "num_slots")
COUNTERS = ("step", "epoch", "seq", "bucket")
UNKNOWN = -1  # of a counter that the run did not record
RUN_FILES = ("config.toml", "environment.json", "metrics.jsonl", "events.jsonl", "summary.json")


@dataclass(frozen=True)
class Steps:
    """One entry for every trained batch, in the order in which it counts: what a resumed run did again replaces what
    was lost. Arrays have length n; what a run did not record is NaN, or UNKNOWN for the counters.

    by_slot: [n, S], share of drafts right at slot 1, 2, ... in training. flow: (index, record) now and then.
    """

    time: FloatArray
    step: IntArray
    epoch: IntArray
    seq: IntArray
    bucket: IntArray
    loss: FloatArray
    acceptance: FloatArray
    grad_norm: FloatArray
    lr_factor: FloatArray
    num_blocks: FloatArray
    num_tokens: FloatArray
    num_slots: FloatArray
    by_slot: FloatArray
    skipped: npt.NDArray[np.bool_]
    flow: tuple[tuple[int, dict[str, Any]], ...]
    num_redone: int

    def __len__(self) -> int:
        return len(self.loss)

    @property
    def x(self) -> FloatArray:
        """Place of every batch on an axis of optimiser steps; batches of one step stand side by side in it."""
        if not len(self) or (self.step == UNKNOWN).any():
            return np.arange(1, len(self) + 1, dtype=np.float64)
        firsts = np.flatnonzero(np.diff(self.step, prepend=self.step[0] - 1))
        sizes = np.diff(np.append(firsts, len(self)))
        within = np.arange(len(self)) - np.repeat(firsts, sizes)
        return np.asarray(self.step + within / np.repeat(sizes, sizes))


@dataclass(frozen=True)
class RunRecord:
    """A run directory in memory. measurements: lines of metrics.jsonl that are no training step. modified: when its
    newest line was written, in seconds of the clock. is_held: by a process, now; None: unknown."""

    path: Path
    config: dict[str, Any]
    environment: dict[str, Any]
    summary: dict[str, Any]
    events: tuple[dict[str, Any], ...]
    examples: tuple[dict[str, Any], ...]
    steps: Steps
    measurements: tuple[dict[str, Any], ...]
    modified: float
    remarks: tuple[str, ...]
    is_held: bool | None = None

    @property
    def name(self) -> str:
        return self.path.resolve().name

    @property
    def target(self) -> str:
        """Name of the target, wherever it was recorded."""
        target = self.config.get("target")
        names = (
            self.environment.get("target"),
            self.summary.get("target"),
            target.get("model") if isinstance(target, dict) else None,
        )
        return next((name for name in names if isinstance(name, str)), "an unnamed target")

    @property
    def batching(self) -> dict[str, Any]:
        """The settings of batching, as far as they were recorded."""
        found = self.config.get("batching")
        return found if isinstance(found, dict) else {}

    def last_event(self, *kinds: str) -> dict[str, Any] | None:
        return next((event for event in reversed(self.events) if event.get("event") in kinds), None)


def read_run(path: Path) -> RunRecord:
    """Read a run directory. Raises CheckpointError if `path` is none."""
    if not path.is_dir():
        raise CheckpointError(f"{path} is no directory; give the directory of a run, such as runs/demo-...")
    if not any((path / name).is_file() for name in RUN_FILES):
        raise CheckpointError(f"{path} holds no run: none of {', '.join(RUN_FILES)} is in it")
    remarks: list[str] = []
    metrics = _lines(path / "metrics.jsonl", remarks)
    examples = _json(path / "examples.json", remarks).get("examples")
    return RunRecord(
        path=path,
        config=_toml(path / "config.toml", remarks),
        environment=_json(path / "environment.json", remarks),
        summary=_json(path / "summary.json", remarks),
        events=tuple(_lines(path / "events.jsonl", remarks)),
        examples=tuple(e for e in examples if isinstance(e, dict)) if isinstance(examples, list) else (),
        steps=steps_of(metrics),
        measurements=tuple(line for line in metrics if "loss" not in line),
        modified=max((path / name).stat().st_mtime for name in RUN_FILES if (path / name).is_file()),
        remarks=tuple(remarks),
    )


def steps_of(lines: Iterable[dict[str, Any]]) -> Steps:
    """Columns of metrics lines. A line whose step was reached before takes back everything from that step on."""
    kept, num_redone = _without_redone([line for line in lines if "loss" in line])
    slots = [_floats(line.get("accuracy_by_slot")) for line in kept]
    width = max(map(len, slots), default=0)
    flows = ((index, line["flow"]) for index, line in enumerate(kept) if isinstance(line.get("flow"), dict))
    number = {name: np.array([_number(line.get(name)) for line in kept], dtype=np.float64) for name in NUMBERS}
    counter = {name: np.array([_counter(line.get(name)) for line in kept], dtype=np.int64) for name in COUNTERS}
    return Steps(
        time=number["time"],
        step=counter["step"],
        epoch=counter["epoch"],
        seq=counter["seq"],
        bucket=counter["bucket"],
        loss=number["loss"],
        acceptance=number["acceptance"],
        grad_norm=number["grad_norm"],
        lr_factor=number["lr_factor"],
        num_blocks=number["num_blocks"],
        num_tokens=number["num_tokens"],
        num_slots=number["num_slots"],
        by_slot=np.array([slot + [np.nan] * (width - len(slot)) for slot in slots]).reshape(len(kept), width),
        skipped=np.array([line.get("skipped") is True for line in kept], dtype=np.bool_),
        flow=tuple(flows),
        num_redone=num_redone,
    )


def _without_redone(lines: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], int]:
    kept: list[dict[str, Any]] = []
    places: list[tuple[int, int]] = []
    num_redone = 0
    for line in lines:
        place = _counter(line.get("epoch")), _counter(line.get("seq"))
        while places and UNKNOWN not in place and places[-1] >= place:
            places.pop()
            kept.pop()
            num_redone += 1
        places.append(place)
        kept.append(line)
    return kept, num_redone


def _lines(path: Path, remarks: list[str]) -> list[dict[str, Any]]:
    """The readable lines of a JSON-lines file. The last one may be torn: killed, or being written right now."""
    try:
        raw = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return []
    except OSError as error:
        remarks.append(f"{path.name} cannot be read: {error.strerror}")
        return []
    found, num_bad = [], 0
    for text in raw[:-1]:
        line = row_of(text)
        if line is None:
            num_bad += 1
        else:
            found.append(line)
    if num_bad:
        remarks.append(f"{path.name}: {num_bad:,} of {len(raw) - 1:,} lines cannot be read and are left out")
    if raw[-1]:
        last = row_of(raw[-1])
        if last is None:
            remarks.append(f"{path.name} ends in the middle of a line: the run was killed, or is writing right now")
        else:
            found.append(last)
    return found


def _json(path: Path, remarks: list[str]) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        remarks.append(f"{path.name} cannot be read: {error}")
        return {}
    return value if isinstance(value, dict) else {}


def _toml(path: Path, remarks: list[str]) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        remarks.append(f"{path.name} cannot be read: {error}")
        return {}


def _number(value: Any) -> float:
    """A number, also one that JSON could only hold as text ("nan", "inf"); NaN for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return float("nan")
    try:
        return float(value)
    except (ValueError, OverflowError):
        return float("nan")


def _counter(value: Any) -> int:
    number = _number(value)
    return int(number) if 0 <= number < 2**53 else UNKNOWN


def _floats(value: Any) -> list[float]:
    return [_number(item) for item in value] if isinstance(value, list) else []
