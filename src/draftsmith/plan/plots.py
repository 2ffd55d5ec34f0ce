"""Pictures of orders: what to draw, and the choice of the writer by the file's ending."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from draftsmith.errors import PlanError
from draftsmith.plan.audit import lags_of
from draftsmith.plan.orders.base import BucketArray
from draftsmith.plan.report import PlanReport

NUM_POINTS, NUM_COLUMNS, NUM_STRIPES = 400, 240, 240
# Five stops of a perceptually even scale, short buckets dark, long ones light.
_STOPS = ((68, 1, 84), (59, 82, 139), (33, 145, 140), (94, 201, 98), (240, 210, 30))

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class OrderPicture:
    """What is drawn of one order over K buckets.

    shares: [columns, K], share of every bucket in consecutive parts of the epoch. head, tail: the first and last
    batches one by one. places: [P + 1], steps done; drift: [K, P + 1], batches ahead (+) or behind (-) of the share;
    remaining: [K, P], share of every bucket in what is left.
    """

    policy: str
    verdict: str
    shares: FloatArray
    head: BucketArray
    tail: BucketArray
    places: FloatArray
    drift: FloatArray
    remaining: FloatArray


def write_plot(report: PlanReport, path: Path) -> None:
    """Draw every order of the report. The ending decides: .html (self-contained), .svg, or .png (needs matplotlib)."""
    pictures = [picture_of(each.policy, each.verdict.text, each.sequence, report.counts) for each in report.policies]
    ending = path.suffix.lower()
    if ending in (".html", ".svg"):
        from draftsmith.plan.svg import page_of, svg_of

        drawing = svg_of(pictures)
        path.write_text(page_of(drawing, report.text) if ending == ".html" else drawing, encoding="utf-8")
    elif ending == ".png":
        from draftsmith.plan.png import save_png

        save_png(pictures, path)
    else:
        raise PlanError(f"plot file {path} ends with {ending!r}; give a name that ends with .html, .svg or .png")


def picture_of(policy: str, verdict: str, sequence: BucketArray, counts: tuple[int, ...]) -> OrderPicture:
    """Reduce an order to what a picture can show."""
    total = len(sequence)
    cuts = np.linspace(0, total, min(NUM_COLUMNS, total) + 1).astype(np.int64)
    columns = [np.bincount(sequence[a:b], minlength=len(counts)) / (b - a) for a, b in pairwise(cuts)]
    points = np.linspace(0, total, min(NUM_POINTS, total) + 1).astype(np.int64)
    drift, remaining = [], []
    for bucket, count in enumerate(counts):
        ahead = np.concatenate([[0], -lags_of(sequence, bucket, count) / total])
        drift.append(ahead[points])
        seen = np.concatenate([[0], np.cumsum(sequence == bucket)])[points]
        remaining.append((count - seen[:-1]) / (total - points[:-1]))
    return OrderPicture(
        policy=policy,
        verdict=verdict,
        shares=np.array(columns),
        head=sequence[:NUM_STRIPES],
        tail=sequence[-NUM_STRIPES:],
        places=points.astype(np.float64),
        drift=np.array(drift),
        remaining=np.array(remaining),
    )


def bucket_color(bucket: int, num_buckets: int) -> str:
    """#rrggbb of a bucket."""
    place = bucket / max(1, num_buckets - 1) * (len(_STOPS) - 1)
    low = min(int(place), len(_STOPS) - 2)
    mixed = [round(a + (b - a) * (place - low)) for a, b in zip(_STOPS[low], _STOPS[low + 1], strict=True)]
    return "#" + "".join(f"{channel:02x}" for channel in mixed)
