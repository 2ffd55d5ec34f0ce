"""Pictures of orders as plain SVG, alone or in a self-contained page: no script, no network, no dependency."""

from __future__ import annotations

import html
import textwrap
from collections.abc import Sequence

from draftsmith.plan.plots import FloatArray, OrderPicture, bucket_color

_WIDTH, _LEFT, _PANEL = 1080, 70, 930
_HEIGHT = 590  # of one order


def svg_of(pictures: Sequence[OrderPicture]) -> str:
    """All orders below one another."""
    height = _HEIGHT * len(pictures) + 40
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{_WIDTH}" height="{height}" fill="white"/>',
        _legend(pictures[0].shares.shape[1]),
    ]
    parts += [_order(picture, 40 + index * _HEIGHT) for index, picture in enumerate(pictures)]
    return "\n".join([*parts, "</svg>\n"])


def page_of(drawing: str, text: str) -> str:
    """A page with the report's text and the drawing."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>Epoch plan</title>\n'
        "<style>body{font-family:sans-serif;margin:2em auto;max-width:1120px}pre{overflow-x:auto;background:#f5f5f5;"
        "padding:1em}svg{max-width:100%;height:auto}</style></head>\n"
        f"<body><h1>Epoch plan</h1>\n<pre>{html.escape(text)}</pre>\n{drawing}</body></html>\n"
    )


def _legend(num_buckets: int) -> str:
    step = min(90, _PANEL // max(1, num_buckets))
    parts = []
    for bucket in range(num_buckets):
        x = _LEFT + bucket * step
        parts.append(f'<rect x="{x}" y="8" width="12" height="12" fill="{bucket_color(bucket, num_buckets)}"/>')
        parts.append(_label(x + 16, 18, f"bucket {bucket}" if step >= 70 else str(bucket)))
    return "\n".join(parts)


def _order(picture: OrderPicture, top: int) -> str:
    parts = [
        f'<text x="{_LEFT}" y="{top + 18}" font-size="16" font-weight="bold">{html.escape(picture.policy)}</text>',
        *(
            _label(_LEFT, top + 36 + 15 * line, text, color="#444")
            for line, text in enumerate(textwrap.wrap(picture.verdict.partition(": ")[2], 150)[:2])
        ),
        _label(_LEFT, top + 72, "share of every bucket, over the epoch"),
        _columns(picture.shares, top + 78, 90),
        _label(_LEFT, top + 190, f"the first {len(picture.head)} batches"),
        _label(_LEFT + _PANEL // 2 + 10, top + 190, f"the last {len(picture.tail)} batches"),
        _stripes(picture.head.tolist(), _LEFT, top + 196, picture.shares.shape[1]),
        _stripes(picture.tail.tolist(), _LEFT + _PANEL // 2 + 10, top + 196, picture.shares.shape[1]),
        _label(_LEFT, top + 258, "batches ahead (+) or behind (-) of the bucket's share"),
        _lines(picture.drift, top + 264, 120),
        _label(_LEFT, top + 414, "share of every bucket in what remains"),
        _lines(picture.remaining, top + 420, 120, low=0.0, high=1.0),
    ]
    return "\n".join(parts)


def _columns(shares: FloatArray, top: int, height: int) -> str:
    num_columns, num_buckets = shares.shape
    width = _PANEL / num_columns
    parts = []
    for bucket in range(num_buckets):
        path = []
        for column in range(num_columns):
            share = shares[column, bucket]
            if share > 0:
                y = top + height * (1 - shares[column, : bucket + 1].sum())
                path.append(
                    f"M{_LEFT + column * width:.1f} {y:.1f}h{width + 0.3:.1f}v{height * share:.1f}h-{width:.1f}z"
                )
        parts.append(f'<path d="{"".join(path)}" fill="{bucket_color(bucket, num_buckets)}"/>')
    return "\n".join(parts)


def _stripes(buckets: list[int], left: int, top: int, num_buckets: int) -> str:
    width = (_PANEL // 2 - 10) / max(1, len(buckets))
    paths: dict[int, list[str]] = {}
    for place, bucket in enumerate(buckets):
        paths.setdefault(bucket, []).append(f"M{left + place * width:.2f} {top}h{width:.2f}v44h-{width:.2f}z")
    drawn = [
        f'<path d="{"".join(path)}" fill="{bucket_color(bucket, num_buckets)}"/>' for bucket, path in paths.items()
    ]
    return "\n".join(drawn)


def _lines(curves: FloatArray, top: int, height: int, *, low: float | None = None, high: float | None = None) -> str:
    num_buckets, num_points = curves.shape
    reach = max(1.0, float(abs(curves).max()))
    low, high = -reach if low is None else low, reach if high is None else high
    zero = top + height * high / (high - low)
    parts = [
        f'<rect x="{_LEFT}" y="{top}" width="{_PANEL}" height="{height}" fill="none" stroke="#999"/>',
        f'<path d="M{_LEFT} {zero:.1f}h{_PANEL}" stroke="#ccc"/>',
        _label(_LEFT - 6, top + 10, _number(high), anchor="end"),
        _label(_LEFT - 6, top + height, _number(low), anchor="end"),
    ]
    for bucket in range(num_buckets):
        points = [
            f"{_LEFT + _PANEL * place / max(1, num_points - 1):.1f},{top + height * (high - value) / (high - low):.1f}"
            for place, value in enumerate(curves[bucket].tolist())
        ]
        color = bucket_color(bucket, num_buckets)
        parts.append(f'<polyline points="{" ".join(points)}" fill="none" stroke="{color}" stroke-width="1.3"/>')
    return "\n".join(parts)


def _label(x: float, y: float, text: str, *, anchor: str = "start", color: str = "black") -> str:
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}" fill="{color}">{html.escape(text)}</text>'


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
