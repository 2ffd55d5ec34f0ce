"""Events of a run: marks on the axis of steps, lines of a table in which what repeats is told once; and acceptance that
was measured while training."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeGuard

from draftsmith.report.record import RunRecord

MANY = 4  # events of one kind in a row, from which on they share a line
MAX_MARKS = 400
TOLD_ELSEWHERE = {"time", "event", "stacks"}


@dataclass(frozen=True)
class EventLine:
    """One line of the table."""

    time: str
    kind: str
    facts: str


def event_lines(record: RunRecord) -> list[EventLine]:
    """The table of events."""
    return [_line(group) for group in _groups(record.events)]


def marks(record: RunRecord) -> list[dict[str, Any]]:
    """Events that have a place among the steps; the rarest kinds first, if there are too many."""
    found = [
        {"x": event["step"], "kind": str(event.get("event", ""))}
        for event in record.events
        if _is_number(event.get("step")) and event.get("event") != "end"
    ]
    kinds = [mark["kind"] for mark in found]
    return sorted(found, key=lambda mark: kinds.count(mark["kind"]))[:MAX_MARKS]


def held_out_acceptance(record: RunRecord) -> dict[str, list[float | None]]:
    """Acceptance on held-out prompts, where the run measured it while training; the last measurement of each step.

    length: free-running, as decoding goes. teacher_forced: at every place of the same answers. gap: what decoding loses
    against that. None where a run did not measure it.
    """
    measured = {
        float(line["step"]): line
        for line in record.measurements
        if _is_number(line.get("step")) and _is_number(line.get("held_out_acceptance"))
    }
    steps = sorted(measured)
    lengths = [float(measured[step]["held_out_acceptance"]) for step in steps]
    known = [measured[step].get("held_out_teacher_forced") for step in steps]
    forced = [float(value) if _is_number(value) else None for value in known]
    gaps = [None if f is None else f - length for f, length in zip(forced, lengths, strict=True)]
    return {"x": [*steps], "length": [*lengths], "teacher_forced": forced, "gap": gaps}


def _groups(events: tuple[dict[str, Any], ...]) -> Iterator[list[dict[str, Any]]]:
    """Events one by one, or together where many of one kind follow each other."""
    start = 0
    for stop in range(1, len(events) + 1):
        if stop < len(events) and events[stop].get("event") == events[start].get("event"):
            continue
        alike = list(events[start:stop])
        if len(alike) >= MANY:
            yield alike
        else:
            yield from ([event] for event in alike)
        start = stop


def _line(group: list[dict[str, Any]]) -> EventLine:
    first, kind = group[0], str(group[0].get("event", ""))
    moment = first.get("time")
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(moment)) if _is_number(moment) else ""
    if len(group) == 1:
        facts = {name: value for name, value in first.items() if name not in TOLD_ELSEWHERE}
        return EventLine(when, kind, ", ".join(f"{name} {_fact(value)}" for name, value in facts.items()))
    steps = [event["step"] for event in group if _is_number(event.get("step"))]
    where = f", steps {min(steps):,} to {max(steps):,}" if steps else ""
    return EventLine(when, kind, f"{len(group):,} times{where}")


def _fact(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 160 else f"{text[:157]}..."


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
