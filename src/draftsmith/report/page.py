"""report.html: one self-contained page about a run. No network, no server, no other file is ever asked for."""

from __future__ import annotations

import base64
import json
import math
import time
from collections.abc import Mapping
from importlib import resources
from typing import Any

import numpy as np
import numpy.typing as npt
from jinja2 import Environment, PackageLoader, StrictUndefined

from draftsmith.report.answers import answers_of
from draftsmith.report.buckets import bucket_lines, padding_share
from draftsmith.report.curves import extremes, part_edges, part_means
from draftsmith.report.diagnosis import Diagnosis
from draftsmith.report.diagnosis.words import paragraph
from draftsmith.report.explain import diagnosis_of, drawn
from draftsmith.report.happenings import event_lines, held_out_acceptance, marks
from draftsmith.report.order import TrainedOrder, trained_order
from draftsmith.report.record import UNKNOWN, RunRecord, Steps
from draftsmith.report.stages import StageTimes, stage_times
from draftsmith.report.tables import set_lines, setup_groups
from draftsmith.report.words import acceptance_sentence, equality_sentence, short, status_of, tiles_of

MAX_POINTS = 120_000  # beyond it, extremes stand for the rest; 5 columns of it are 3 MB of text
NUM_SLOT_POINTS = 240
SCRIPTS = ("vendor/uplot/uPlot.iife.min.js", "page/series.js", "page/charts.js", "page/live.js")
STYLES = ("vendor/uplot/uPlot.min.css", "page/page.css")


def render_report(record: RunRecord, *, now: float | None = None) -> str:
    """The page as text."""
    now = time.time() if now is None else now
    status, order, times = status_of(record, now=now), trained_order(record), stage_times(record)
    found = diagnosis_of(record)
    figures = payload(record, found, order, times)
    return render(
        "report.html",
        figures,
        script="main.js",
        record=record,
        status=status,
        tiles=tiles_of(record),
        acceptance=acceptance_sentence(record),
        equality=equality_sentence(record.summary),
        order=order,
        stages=times,
        diagnosis=paragraph(found),
        sets=set_lines(record),
        setup=setup_groups(record),
        buckets=bucket_lines(record),
        padding=padding_share(record.steps, ~record.steps.skipped),
        events=event_lines(record),
        answers=answers_of(record),
        has_gap=any(gap is not None for gap in figures["held_out"]["gap"]),
        made=time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(now)),
    )


def render(template: str, figures: Mapping[str, Any], *, script: str, **context: Any) -> str:
    """Fill a template of page/ and put styles, scripts and figures into it; `script` of page/ draws the figures."""
    environment = Environment(
        loader=PackageLoader("draftsmith.report", "page"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    environment.filters |= {"percent": _percent, "number": short}
    # "<" would let a text end the script that it stands in.
    packed_json = json.dumps(figures, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    return environment.get_template(template).render(
        styles="\n".join(_packaged(name) for name in STYLES),
        scripts=[_packaged(name) for name in (*SCRIPTS, f"page/{script}")],
        figures=packed_json,
        **context,
    )


def payload(
    record: RunRecord, found: Diagnosis, order: TrainedOrder | None, times: StageTimes | None
) -> dict[str, Any]:
    """What the plots are drawn from."""
    steps = record.steps
    chosen = extremes([steps.loss, steps.acceptance, steps.grad_norm], MAX_POINTS) if len(steps) else np.arange(0)
    x = steps.x
    return {
        "num_buckets": int(steps.bucket.max(initial=UNKNOWN)) + 1,
        "x": packed(x[chosen]),
        "loss": packed(steps.loss[chosen]),
        "acceptance": packed(steps.acceptance[chosen]),
        "grad_norm": packed(steps.grad_norm[chosen]),
        "lr_factor": packed(steps.lr_factor[chosen]),
        "bucket": packed(np.clip(steps.bucket[chosen], 0, 255), "uint8") if len(steps) else None,
        "by_slot": _by_slot(steps),
        "sets": [{"name": line.name, "slots": plain(np.array(line.by_slot))} for line in set_lines(record)],
        "order": None
        if order is None
        else {"x": plain(order.x), "drift": plain(order.drift), "remaining": plain(order.remaining)},
        "stages": None
        if times is None
        else {"x": plain(times.x), "parts": [{"name": s.name, "shares": plain(s.shares)} for s in times.stages]},
        "diagnosis": _plain_tree(drawn(found)),
        "events": marks(record),
        "held_out": held_out_acceptance(record),
    }


def packed(values: npt.NDArray[Any], kind: str = "float32") -> dict[str, str]:
    """An array as text that a browser decodes at once; NaN survives."""
    return {"kind": kind, "base64": base64.b64encode(values.astype(f"<{np.dtype(kind).str[1:]}").tobytes()).decode()}


def plain(values: npt.NDArray[Any]) -> Any:
    """A small array as JSON; what is not finite becomes null."""
    if values.ndim > 1:
        return [plain(row) for row in values]
    return [float(f"{value:.7g}") if math.isfinite(value) else None for value in values.tolist()]


def _plain_tree(tree: Any) -> Any:
    """Dictionaries of small arrays as JSON."""
    if isinstance(tree, dict):
        return {name: _plain_tree(value) for name, value in tree.items()}
    return plain(tree) if isinstance(tree, np.ndarray) else tree


def _by_slot(steps: Steps) -> dict[str, Any] | None:
    if not steps.by_slot.size:
        return None
    edges = part_edges(len(steps), NUM_SLOT_POINTS)
    curves = [part_means(steps.by_slot[:, slot], edges, steps.num_blocks) for slot in range(steps.by_slot.shape[1])]
    return {"x": plain(steps.x[edges[1:] - 1]), "slots": [plain(curve) for curve in curves]}


def _packaged(name: str) -> str:
    return resources.files("draftsmith.report").joinpath(name).read_text(encoding="utf-8")


def _percent(share: float) -> str:
    return f"{share:.1%}" if math.isfinite(share) else "–"
