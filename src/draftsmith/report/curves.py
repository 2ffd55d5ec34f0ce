"""Many points become few: extremes are kept one by one, averages are taken over parts of equal length."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from draftsmith.report.record import FloatArray, IntArray


def extremes(curves: Sequence[FloatArray], limit: int) -> IntArray:
    """Indices of at most `limit` points, ascending, among them the lowest and the highest of every curve in every part
    of equal length, and the two ends. All indices if there are no more than `limit` points."""
    total = len(curves[0])
    if total <= limit:
        return np.arange(total)
    num_parts = max(1, (limit - 2) // (2 * len(curves)))
    edges = np.linspace(0, total, num_parts + 1).astype(np.int64)
    part = np.repeat(np.arange(num_parts), np.diff(edges))
    chosen = [np.array([0, total - 1])]
    for curve in curves:
        # Sorted within each part; what is not finite takes no place of an extreme, unless there is nothing else.
        for unlike in (np.inf, -np.inf):
            order = np.lexsort((np.where(np.isfinite(curve), curve, unlike), part))
            chosen.append(order[edges[:-1]] if unlike > 0 else order[edges[1:] - 1])
    return np.unique(np.concatenate(chosen))


def part_edges(total: int, num_parts: int) -> IntArray:
    """Edges of at most `num_parts` parts of nearly equal length that cover `total` points; none is empty."""
    return np.linspace(0, total, min(num_parts, total) + 1).astype(np.int64) if total else np.zeros(1, dtype=np.int64)


def part_means(values: FloatArray, edges: IntArray, weights: FloatArray | None = None) -> FloatArray:
    """Weighted mean of every part, over what is finite; NaN where there is nothing."""
    weights = np.ones(len(values)) if weights is None else weights
    usable = np.isfinite(values) & np.isfinite(weights)
    totals = _part_sums(np.where(usable, values * weights, 0.0), edges)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(totals / _part_sums(np.where(usable, weights, 0.0), edges))


def _part_sums(values: FloatArray, edges: IntArray) -> FloatArray:
    running = np.concatenate([[0.0], np.cumsum(values)])
    return np.asarray(running[edges[1:]] - running[edges[:-1]])
