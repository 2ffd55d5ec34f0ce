"""What happened, in words: the paragraph at the top of a report, and the figures that stand beside it."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from draftsmith.report.record import RunRecord
from draftsmith.report.tables import set_lines

SILENT_S = 600.0  # a run that wrote nothing for so long, and for 20 steps, is taken for dead


@dataclass(frozen=True)
class Status:
    """kind: empty, training, finished, interrupted, failed or silent."""

    kind: str
    text: str


@dataclass(frozen=True)
class Tile:
    """One figure with its name and what it means. tone: "", "good" or "bad"."""

    name: str
    value: str
    note: str = ""
    tone: str = ""


def status_of(record: RunRecord, *, now: float) -> Status:
    """Where the run stands. One that said nothing at its end is judged by its lock, or else by the clock."""
    last = record.last_event("start", "resume", "end", "interrupted", "failed")
    kind = str((last or {}).get("event", ""))
    done = _how_far(record)
    if kind == "end":
        return Status("finished", f"Finished {_when(record.modified)}: {done}.")
    if kind == "interrupted":
        return Status(
            "interrupted", f"Stopped by a signal {_when(record.modified)}: {done}. What was trained was kept."
        )
    if kind == "failed":
        return Status("failed", f"Failed {_when(record.modified)}: {done}. {(last or {}).get('error', '')}")
    if not len(record.steps):
        return Status("empty", "Nothing has been trained yet.")
    if record.is_held is False or now - record.modified > max(SILENT_S, 20 * seconds_per_step(record)):
        return Status(
            "silent", f"The run fell silent {_when(record.modified)} without saying why, as after a kill: {done}."
        )
    return Status("training", f"Still training when this page was made, {_when(now)}: {done}.")


def seconds_per_step(record: RunRecord) -> float:
    """Median time between two steps; 0 where there are none."""
    gaps = np.diff(record.steps.time)
    gaps = gaps[np.isfinite(gaps) & (gaps >= 0)]
    return float(np.median(gaps)) if len(gaps) else 0.0


def acceptance_sentence(record: RunRecord) -> str:
    """What the drafter is worth, as far as it has been measured."""
    summary = record.summary
    length = _number(summary.get("acceptance_length"))
    if length is None:
        return "Acceptance has not been measured on held-out prompts yet."
    name = str(summary.get("headline_set", ""))
    prompts = next((line.num_prompts for line in set_lines(record) if line.name == name), math.nan)
    where = f" on {prompts:.0f} prompts of {name}" if math.isfinite(prompts) else ""
    text = f"A forward of the target yields {length:.2f} tokens{where}, against 1 without the drafter"
    speedup, plain = _number(summary.get("speedup")), _number(summary.get("baseline_tokens_per_s"))
    fast = _number(summary.get("speculative_tokens_per_s"))
    if speedup is not None and plain is not None and fast is not None:
        text += f"; measured here, decoding went from {plain:.1f} to {fast:.1f} tokens/s ({speedup:.2f} times)"
    return text + "."


def equality_sentence(summary: dict[str, Any]) -> str:
    equal, checked = summary.get("num_lossless"), summary.get("num_lossless_checked")
    if not isinstance(equal, int) or not isinstance(checked, int) or not checked:
        return ""
    if equal == checked:
        return f"All {checked} checked answers equal plain greedy decoding."
    return (
        f"{checked - equal} of {checked} checked answers differ from plain greedy decoding: do not serve this drafter."
    )


def tiles_of(record: RunRecord) -> list[Tile]:
    """The figures that people look for first."""
    summary, steps = record.summary, record.steps
    tiles = []
    length = _number(summary.get("acceptance_length"))
    if length is not None:
        tiles.append(Tile("tokens per target forward", f"{length:.2f}", str(summary.get("headline_set", ""))))
    elif len(steps):
        tiles.append(Tile("accepted in training", f"{late_mean(steps.acceptance):.2f}", "teacher-forced, last tenth"))
    speedup = _number(summary.get("speedup"))
    if speedup is not None:
        tiles.append(Tile("measured speed", f"{speedup:.2f}×", "of plain decoding", "good" if speedup > 1 else ""))
    checked = summary.get("num_lossless_checked")
    if isinstance(checked, int) and checked:
        equal = summary.get("num_lossless", 0)
        tiles.append(Tile("equal to greedy", f"{equal} / {checked}", "answers", "good" if equal == checked else "bad"))
    if len(steps):
        tiles.append(Tile("loss", f"{late_mean(steps.loss):.3f}", "mean of the last tenth"))
        tiles.append(Tile("steps", f"{steps_done(record):,}", f"{passes(record):.2f} passes over the data"))
        num_skipped = int(steps.skipped.sum())
        tiles.append(Tile("skipped steps", str(num_skipped), "not finite", "bad" if num_skipped else "good"))
    seconds = train_seconds(record)
    if seconds:
        tiles.append(Tile("training time", duration(seconds), f"{_tokens_per_s(record):,.0f} tokens/s"))
    return tiles


def late_mean(values: Any) -> float:
    """Mean over the last tenth, of what is finite."""
    late = values[len(values) * 9 // 10 :]
    late = late[np.isfinite(late)]
    return float(late.mean()) if len(late) else math.nan


def steps_done(record: RunRecord) -> int:
    steps = record.steps
    return max(len(steps) if (steps.step < 0).any() else int(steps.step.max(initial=0)), 0)


def passes(record: RunRecord) -> float:
    """Passes over the data so far; NaN where epochs were not recorded."""
    steps = record.steps
    if not len(steps) or (steps.epoch < 0).any():
        return math.nan
    start = record.last_event("start") or {}
    planned = start.get("bucket_batches")
    known = sum(planned) if isinstance(planned, list) and all(isinstance(c, int) for c in planned) else 0
    size = known or int(steps.seq.max()) + 1
    return float(steps.epoch[-1]) + (float(steps.seq[-1]) + 1) / max(size, int(steps.seq[-1]) + 1)


def train_seconds(record: RunRecord) -> float:
    """Seconds of training: as measured, else between first and last line, without the gaps of restarts."""
    measured = _number(record.summary.get("train_seconds"))
    if measured is not None:
        return measured
    gaps = np.diff(record.steps.time)
    gaps = gaps[np.isfinite(gaps) & (gaps >= 0)]
    usual = np.median(gaps) if len(gaps) else 0.0
    return float(gaps[gaps <= max(60.0, 20 * usual)].sum())


def duration(seconds: float) -> str:
    """Seconds as a person would say them."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def short(value: float) -> str:
    """A figure for a table: four digits, or all of a large one."""
    if not math.isfinite(value):
        return "–"
    return f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"


def _how_far(record: RunRecord) -> str:
    if not len(record.steps):
        return "no step was trained"
    tokens = record.steps.num_tokens
    over = f" over {tokens[np.isfinite(tokens)].sum():,.0f} tokens" if np.isfinite(tokens).any() else ""
    return f"{steps_done(record):,} steps{over} in {duration(train_seconds(record))}"


def _tokens_per_s(record: RunRecord) -> float:
    tokens, seconds = record.steps.num_tokens, train_seconds(record)
    return float(tokens[np.isfinite(tokens)].sum()) / seconds if seconds else 0.0


def _when(moment: float) -> str:
    return time.strftime("on %Y-%m-%d at %H:%M UTC", time.gmtime(moment))


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)
