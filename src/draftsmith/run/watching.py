"""watch(): a run in another process, seen through its files alone. Nothing is ever written."""

from __future__ import annotations

import dataclasses
import heapq
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live

from draftsmith.errors import CheckpointError
from draftsmith.observe import Picture, Row, Snapshot, Tail, Tally, duration, one_line
from draftsmith.run.lock import LOCK, is_held

INTERVAL_S = 1.0
LINE_EVERY_S = 10.0
LONG_S = 60.0  # a run that writes nothing for so long, and for 20 times its usual step, may be dead
OF_A_RUN = ("config.toml", "metrics.jsonl", "events.jsonl", "summary.json", "checkpoints", LOCK)


class RunFiles:
    """The growing files of a run directory as snapshots. Raises CheckpointError if it is not one."""

    def __init__(self, run: Path) -> None:
        if not run.is_dir():
            raise CheckpointError(f"{run} is not a directory; give the directory of a run, such as runs/demo-...")
        if not any((run / name).exists() for name in OF_A_RUN):
            raise CheckpointError(f"{run} is not a run: it holds none of {', '.join(OF_A_RUN)}")
        self._run = run
        self._config = _toml(run / "config.toml")
        self._has_read = False
        self._open()

    def snapshot(self, now: float) -> Snapshot:
        """What the files say at `now`. Raises CheckpointError if one cannot be read."""
        try:
            return self._snapshot(now)
        except OSError as error:
            raise CheckpointError(f"{error.filename or self._run} cannot be read: {error.strerror}") from error

    def _open(self) -> None:
        self._metrics = Tail(self._run / "metrics.jsonl")
        self._events = Tail(self._run / "events.jsonl")
        self._tally = Tally(str(self._run), base_lr=_base_lr(self._config))

    def _snapshot(self, now: float) -> Snapshot:
        metrics, events = self._metrics.read(), self._events.read()
        if self._was_cut_back(events):
            self._open()
            metrics, events = self._metrics.read(), self._events.read()
        for _at, is_event, row in _in_order(metrics, events):
            (self._tally.event if is_event else self._tally.metrics)(row)
        found = self._tally.snapshot(now)
        found = dataclasses.replace(found, silent_s=self._silent_s(now), notes=(*found.notes, *self._notes()))
        return self._judged(found)

    def _was_cut_back(self, events: list[Row]) -> bool:
        """Resuming takes rows away that we may have counted: those after the checkpoint that it goes on from."""
        resumed = self._has_read and any(row.get("event") == "resume" for row in events)
        self._has_read = True
        return resumed or self._metrics.num_restarts + self._events.num_restarts > 0

    def _silent_s(self, now: float) -> float | None:
        paths = [self._run / name for name in ("metrics.jsonl", "events.jsonl", "summary.json", "config.toml")]
        writes = [path.stat().st_mtime for path in paths if path.exists()]
        return max(0.0, now - max(writes)) if writes else None

    def _notes(self) -> list[str]:
        unreadable = self._metrics.num_unreadable + self._events.num_unreadable
        return [f"{unreadable} broken lines were left out"] if unreadable else []

    def _judged(self, found: Snapshot) -> Snapshot:
        """What a run that has not ended is doing, as far as its lock and its files tell."""
        if found.phase not in ("not begun", "training"):
            return found
        phase, silent_s, held = found.phase, found.silent_s or 0.0, is_held(self._run)
        usual_step_s = max(0.0, found.elapsed_s - silent_s) / max(found.step, 1)
        if held is False:
            phase = f"died: its process is gone, and wrote last {duration(silent_s)} ago"
        elif phase == "training" and _newer(self._run / "summary.json", self._run / "metrics.jsonl"):
            phase = "measuring"  # what was trained is saved; decoding takes minutes and writes nothing
        elif silent_s > max(LONG_S, 20 * usual_step_s):
            why = "it hangs, or does something long" if held else "it has died, or hangs"
            phase = f"silent for {duration(silent_s)}: {why}"
        elif held and phase == "not begun":
            phase = "loading"
        return dataclasses.replace(found, phase=phase)


def watch(run: Path, *, once: bool) -> None:
    """Show a run until it ends: a picture in a terminal, else lines. With `once` one picture of it as it is."""
    files, console = RunFiles(run), Console(highlight=False)
    found = files.snapshot(time.time())
    if once or _is_over(found):
        console.print(Picture(found))
    elif console.is_terminal and not console.is_dumb_terminal:
        _follow(files, console, found)
    else:
        _follow_in_lines(files, console, found)


def _follow(files: RunFiles, console: Console, found: Snapshot) -> None:
    with Live(Picture(found), console=console, auto_refresh=False, vertical_overflow="crop") as live:
        while not _is_over(found):
            time.sleep(INTERVAL_S)
            found = files.snapshot(time.time())
            live.update(Picture(found), refresh=True)


def _follow_in_lines(files: RunFiles, console: Console, found: Snapshot) -> None:
    while True:
        console.print(f"{found.phase}: {one_line(found)}", markup=False, soft_wrap=True)
        if _is_over(found):
            return
        time.sleep(LINE_EVERY_S)
        found = files.snapshot(time.time())


def _is_over(found: Snapshot) -> bool:
    return found.phase.startswith(("ended", "stopped", "failed", "died"))


def _in_order(metrics: list[Row], events: list[Row]) -> Iterator[tuple[float, bool, Row]]:
    """Rows of both files by time, each file in its own order; true for events, which come first at the same time."""
    rows = [[(at, is_event, row) for at, row in _timed(of)] for is_event, of in ((True, events), (False, metrics))]
    return heapq.merge(*rows, key=lambda entry: entry[0])


def _timed(rows: list[Row]) -> Iterator[tuple[float, Row]]:
    """A row without a time, or with an earlier one, counts as written with the one before it."""
    latest = 0.0
    for row in rows:
        at = row.get("time")
        latest = max(latest, float(at)) if isinstance(at, int | float) else latest
        yield latest, row


def _newer(path: Path, other: Path) -> bool:
    return path.exists() and other.exists() and path.stat().st_mtime >= other.stat().st_mtime


def _toml(path: Path) -> dict[str, Any]:
    """Read without checking: a run of another version has other settings."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


def _base_lr(config: dict[str, Any]) -> float | None:
    train = config.get("train")
    if not isinstance(train, dict):
        return None
    found = train.get("muon_lr" if train.get("optimizer") == "muon" else "lr")
    return float(found) if isinstance(found, int | float) else None
