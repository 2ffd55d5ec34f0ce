"""Real `draftsmith train` processes, killed from outside: started, hit at random moments, started again.

The processes come from a fork server that has imported the heavy libraries, so that a start costs half a second; the
long set executes the installed interpreter anew instead. Either way it is the command line that runs, in a process
group of its own, and what hits it knows nothing of its inside.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

import draftsmith.run.loop as loop_module

COMMAND = "import sys; from draftsmith.cli import main; main()"
TIMEOUT_S = 300.0


class Training:
    """A process group that runs the command line; output goes to a file."""

    def __init__(self, arguments: Sequence[object], output: Path) -> None:
        self.output = output
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["draftsmith.run.starting", "chaos"])
        self._child = context.Process(target=_command_line, args=([str(each) for each in arguments], str(output)))
        self._child.start()
        self.pid = self._child.pid or 0

    def wait(self, timeout_s: float = TIMEOUT_S) -> int | None:
        """Exit code as a shell gives it, or None while it runs."""
        self._child.join(timeout_s)
        code = self._child.exitcode
        return None if code is None else 128 - code if code < 0 else code

    def send(self, number: signal.Signals) -> None:
        """To the whole group, as a terminal or a container does."""
        try:
            os.killpg(self.pid, number)
        except ProcessLookupError:  # it has ended, or has not come so far as to make its group
            if self._child.is_alive():
                os.kill(self.pid, number)

    @property
    def said(self) -> str:
        return self.output.read_text(encoding="utf-8", errors="replace") if self.output.exists() else ""


class Executed(Training):
    """The same by executing the interpreter anew."""

    def __init__(self, arguments: Sequence[object], output: Path, env: Mapping[str, str] | None = None) -> None:
        self.output = output
        with output.open("w", encoding="utf-8") as file:
            self._process = subprocess.Popen(
                [sys.executable, "-c", COMMAND, *map(str, arguments)],
                stdout=file,
                stderr=file,
                start_new_session=True,
                env={**os.environ, **(env or {})},
            )
        self.pid = self._process.pid

    def wait(self, timeout_s: float = TIMEOUT_S) -> int | None:
        try:
            code = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None
        return 128 - code if code < 0 else code

    def send(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)


def _command_line(arguments: list[str], output: str) -> None:
    """What the forked child does."""
    os.setsid()
    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(file, 1)
    os.dup2(file, 2)
    sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", closefd=False)
    if limit := os.environ.get("CHAOS_MAX_FILE_BYTES"):
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit), int(limit)))
    from draftsmith.cli import main

    sys.argv = ["draftsmith", *arguments]
    main()


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
