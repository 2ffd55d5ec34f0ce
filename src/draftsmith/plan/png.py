"""Pictures of orders as PNG, with matplotlib (extra `plot`)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from draftsmith.errors import PlanError
from draftsmith.plan.plots import OrderPicture, bucket_color


def save_png(pictures: Sequence[OrderPicture], path: Path) -> None:
    """One row of panels for each order. Raises PlanError without matplotlib."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise PlanError(f"{path} needs matplotlib; install draftsmith[plot], or plot to .html instead") from None
    figure = Figure(figsize=(18, 3.6 * len(pictures)), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(len(pictures), 4, squeeze=False)
    for row, picture in zip(grid, pictures, strict=True):
        _draw(row, picture)
    figure.savefig(path, dpi=90)


def _draw(row: Any, picture: OrderPicture) -> None:
    num_buckets = picture.shares.shape[1]
    colors = [bucket_color(bucket, num_buckets) for bucket in range(num_buckets)]
    shares, ends, drift, remaining = row
    edges = np.linspace(0, 1, len(picture.shares))
    shares.stackplot(edges, picture.shares.T, colors=colors, labels=[f"bucket {i}" for i in range(num_buckets)])
    shares.set(title=f"{picture.policy}: share over the epoch", xlim=(0, 1), ylim=(0, 1))
    shares.legend(fontsize=7, loc="lower left")
    palette = np.array([[int(color[at : at + 2], 16) for at in (1, 3, 5)] for color in colors], dtype=np.uint8)
    for top, part in ((1.1, picture.head), (0.0, picture.tail)):
        ends.imshow(palette[part][None], aspect="auto", extent=(0, len(part), top, top + 0.9))
    ends.set(title="first (above) and last batches", ylim=(-0.05, 2.05), yticks=[])
    for bucket, color in enumerate(colors):
        drift.plot(picture.places, picture.drift[bucket], color=color, linewidth=1)
        remaining.plot(picture.places[:-1], picture.remaining[bucket], color=color, linewidth=1)
    drift.set(title="batches ahead or behind of the share")
    remaining.set(title="share in what remains", ylim=(0, 1))
