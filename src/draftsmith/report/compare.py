"""Runs side by side: their figures, the settings in which they differ, their curves over one another."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from draftsmith.report.curves import part_edges, part_means
from draftsmith.report.diagnosis.words import paragraph
from draftsmith.report.explain import diagnosis_of
from draftsmith.report.page import plain, render
from draftsmith.report.record import RunRecord
from draftsmith.report.tables import number_of, set_lines
from draftsmith.report.words import duration, late_mean, passes, short, status_of, steps_done, train_seconds

NUM_POINTS = 400
NOT_COMPARED = {"run.dir"}  # differs between any two runs, and says nothing


@dataclass(frozen=True)
class Row:
    """One figure of all runs, as text; best: index of the run that has the best, if one is better than another."""

    name: str
    values: tuple[str, ...]
    best: int | None = None


@dataclass(frozen=True)
class Comparison:
    """names: of the runs, told apart. figures and settings: the latter only where runs differ."""

    names: tuple[str, ...]
    figures: tuple[Row, ...]
    settings: tuple[Row, ...]


def compare_runs(records: Sequence[RunRecord], *, now: float | None = None) -> Comparison:
    """Lay the figures of runs side by side."""
    now = time.time() if now is None else now
    rows = [
        Row("status", tuple(status_of(record, now=now).kind for record in records)),
        Row("target", tuple(record.target for record in records)),
        _text("steps", [f"{steps_done(record):,}" for record in records]),
        _text("passes over the data", [short(passes(record)) for record in records]),
        _text("training time", [duration(train_seconds(record)) for record in records]),
        _best("tokens/s in training", [_rate(record) for record in records], max),
        _best("loss, last tenth", [late_mean(record.steps.loss) for record in records], min),
        _best("accepted in training, last tenth", [late_mean(record.steps.acceptance) for record in records], max),
    ]
    for name in dict.fromkeys(line.name for record in records for line in set_lines(record)):
        lengths = [next((s.length for s in set_lines(record) if s.name == name), math.nan) for record in records]
        rows.append(_best(f"tokens per target forward, {name}", lengths, max))
    rows += [
        _best("measured speed-up", [number_of(record.summary.get("speedup")) for record in records], max),
        _text("equal to greedy decoding", [_equal(record) for record in records]),
        _text("bottleneck", [_bottleneck(record) for record in records]),
        _text("parameters", [str(record.summary.get("params_sha256", "–"))[:12] for record in records]),
    ]
    return Comparison(_names(records), tuple(rows), tuple(_differences(records)))


def render_comparison(records: Sequence[RunRecord]) -> str:
    """The same as one self-contained page, with the curves."""
    found = compare_runs(records)
    figures = {"num_buckets": 0, "runs": [_curves(r, name) for r, name in zip(records, found.names, strict=True)]}
    diagnoses = [paragraph(diagnosis_of(record)) for record in records]
    made = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    return render("compare.html", figures, script="compare.js", found=found, diagnoses=diagnoses, made=made)


def _curves(record: RunRecord, name: str) -> dict[str, Any]:
    steps = record.steps
    edges = part_edges(len(steps), NUM_POINTS)
    tokens = np.cumsum(np.nan_to_num(steps.num_tokens))
    return {
        "name": name,
        "step": plain(steps.x[edges[1:] - 1]),
        "tokens": plain(tokens[edges[1:] - 1]),
        "loss": plain(part_means(steps.loss, edges)),
        "acceptance": plain(part_means(steps.acceptance, edges)),
        "sets": [{"name": line.name, "slots": plain(np.array(line.by_slot))} for line in set_lines(record)],
    }


def _differences(records: Sequence[RunRecord]) -> list[Row]:
    flat = [_flat(record.config) for record in records]
    names = sorted({name for settings in flat for name in settings} - NOT_COMPARED)
    rows = [Row(name, tuple(str(settings.get(name, "–")) for settings in flat)) for name in names]
    return [row for row in rows if len(set(row.values)) > 1]


def _flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in settings.items():
        found |= _flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return found


def _names(records: Sequence[RunRecord]) -> tuple[str, ...]:
    """Names of the directories; whole paths where two are alike."""
    names = [record.name for record in records]
    return tuple(name if names.count(name) == 1 else str(r.path) for name, r in zip(names, records, strict=True))


def _best(name: str, values: Sequence[float], choose: Any) -> Row:
    finite = [value for value in values if math.isfinite(value)]
    best = values.index(choose(finite)) if len({short(value) for value in finite}) > 1 else None
    return Row(name, tuple(short(value) for value in values), best)


def _text(name: str, values: Sequence[str]) -> Row:
    return Row(name, tuple(values))


def _rate(record: RunRecord) -> float:
    tokens, seconds = float(np.nansum(record.steps.num_tokens)), train_seconds(record)
    return tokens / seconds if seconds and tokens else math.nan


def _equal(record: RunRecord) -> str:
    checked = record.summary.get("num_lossless_checked")
    return f"{record.summary.get('num_lossless')} of {checked}" if checked else "–"


def _bottleneck(record: RunRecord) -> str:
    flow = record.summary.get("flow")
    return str(flow.get("bottleneck") or "–") if isinstance(flow, Mapping) else "–"
