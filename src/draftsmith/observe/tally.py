"""Adds up what the journal says into a snapshot. The live view is told each row, `watch` reads them: one story.

Rows may come from an older version or a damaged file: what is missing or is not a number is unknown, never an error.
"""

from __future__ import annotations

import math
import signal
from collections import deque
from collections.abc import Sequence
from typing import Any

from draftsmith.observe.snapshot import FlowShares, Snapshot, Window, printable, recorded_flow
from draftsmith.observe.tail import Row

NEWEST = 100  # batches that an overall mean is taken over
NEWEST_OF_BUCKET = 20
MAX_BUCKETS = 64  # more are not shown, and a damaged file cannot ask for more
ENDS = ("end", "interrupted", "failed")
MAX_NOTES = 3


class Tally:
    """What the rows told so far add up to. `base_lr` turns the factor of the schedule into a learning rate."""

    def __init__(self, title: str, *, base_lr: float | None = None) -> None:
        self._title = printable(title)
        self._base_lr = base_lr
        self._phase = "not begun"
        self._losses: deque[float] = deque(maxlen=2 * NEWEST)
        self._acceptances: deque[float] = deque(maxlen=NEWEST)
        self._by_bucket: dict[int, deque[float]] = {}
        self._newest: Row = {}
        self._held_out: float | None = None
        self._first: tuple[float, float] | None = None  # time and progress where this start began
        self._num_skipped = 0
        self._num_spikes = 0
        self._flow: FlowShares | None = None
        self._window = Window()
        self._event: Row = {}
        self._notes: deque[str] = deque(maxlen=MAX_NOTES)

    def metrics(self, row: Row) -> None:
        """One line of metrics.jsonl: a batch that was trained on, or a measurement between two steps."""
        self._phase = "training"
        if "held_out_acceptance" in row:
            self._held_out = _number(row, "held_out_acceptance")
            return
        self._newest = row
        loss, acceptance = _number(row, "loss"), _number(row, "acceptance")
        if loss is not None:
            self._losses.append(loss)
            self._count_in_bucket(row.get("bucket"), loss)
        if acceptance is not None:
            self._acceptances.append(acceptance)
        self._num_skipped += row.get("skipped") is True
        if self._first is None:
            self._first = _number(row, "time") or 0.0, 0.0
        if "flow" in row:
            self._count_flow(recorded_flow(row["flow"]))

    def event(self, row: Row) -> None:
        """One line of events.jsonl."""
        kind = str(row.get("event", ""))
        if kind == "warning":
            self._notes.append(printable(str(row.get("text", ""))))
            return
        self._event = row
        if kind in ("start", "resume"):
            self._phase = "training"
            self._first = _number(row, "time") or 0.0, _number(row, "progress") or 0.0
        elif kind in ENDS:
            self._phase = _ending(kind, row)
        elif kind == "spike":
            self._num_spikes += 1

    def snapshot(self, now: float, *, flow: FlowShares | None = None) -> Snapshot:
        """Everything up to `now`, in seconds since the epoch; `flow` is newer than what the rows say."""
        if flow is not None:
            self._count_flow(flow)
        row, step = self._newest, _number(self._newest, "step")
        epoch, progress, factor = _number(row, "epoch"), _number(row, "progress"), _number(row, "lr_factor")
        elapsed_s = self._elapsed_s(now)
        newest, before = list(self._losses)[-NEWEST:], list(self._losses)[:-NEWEST]
        event_time = _number(self._event, "time")
        return Snapshot(
            title=self._title,
            phase=self._phase,
            elapsed_s=elapsed_s,
            left_s=self._left_s(progress, elapsed_s),
            progress=None if progress is None else min(max(progress, 0.0), 1.0),
            step=int(step or 0),
            epoch=None if epoch is None else int(epoch),
            loss=_mean(newest),
            loss_before=_mean(before),
            loss_by_bucket=tuple((bucket, sum(of) / len(of)) for bucket, of in sorted(self._by_bucket.items())),
            acceptance=_mean(self._acceptances),
            held_out=self._held_out,
            lr=None if factor is None or self._base_lr is None else factor * self._base_lr,
            lr_factor=factor,
            grad_norm=_number(row, "grad_norm"),
            num_skipped=self._num_skipped,
            num_spikes=self._num_spikes,
            flow=self._flow,
            last_event=_in_words(self._event),
            last_event_age_s=None if event_time is None else max(0.0, now - event_time),
            notes=tuple(self._notes),
        )

    def _count_in_bucket(self, bucket: Any, loss: float) -> None:
        if isinstance(bucket, int) and (bucket in self._by_bucket or len(self._by_bucket) < MAX_BUCKETS):
            self._by_bucket.setdefault(bucket, deque(maxlen=NEWEST_OF_BUCKET)).append(loss)

    def _count_flow(self, flow: FlowShares | None) -> None:
        if flow is not None:
            self._flow = self._window.recent(flow)

    def _elapsed_s(self, now: float) -> float:
        """Up to now while it trains, else up to the newest batch."""
        if self._first is None or not self._newest:
            return 0.0
        end = now if self._phase == "training" else _number(self._newest, "time") or now
        return max(0.0, end - self._first[0])

    def _left_s(self, progress: float | None, elapsed_s: float) -> float | None:
        if progress is None or self._first is None or self._phase != "training":
            return None
        done = progress - self._first[1]
        return elapsed_s * max(0.0, 1 - progress) / done if done > 0 else None


def _number(row: Row, name: str) -> float | None:
    value = row.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) and abs(value) < 1e18 else None


def _mean(values: Sequence[float] | deque[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _ending(kind: str, row: Row) -> str:
    if kind == "end":
        return "ended"
    if kind == "failed":
        return f"failed: {printable(str(row.get('error', '')))}"
    number = row.get("signal")
    names = {int(known): known.name for known in signal.Signals}
    return f"stopped by {names.get(number, 'a signal')}" if isinstance(number, int) else "stopped"


def _in_words(event: Row) -> str:
    """The kind of an event and what else it says in short."""
    if not event:
        return ""
    facts = [f"{name} {value}" for name, value in event.items() if _is_short(name, value)]
    return printable(" ".join([str(event.get("event", "?"))[:40], *facts[:4]]))


def _is_short(name: str, value: Any) -> bool:
    if name in ("time", "event", "stacks"):
        return False
    return isinstance(value, bool | int | float) or (isinstance(value, str) and len(value) <= 80)
