"""An inspection as one self-contained HTML page: no script, nothing loaded from elsewhere, light and dark."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from draftsmith.data.inspect import Inspection, ShownRow
from draftsmith.data.inspect_text import rejection_lines, shortened, summary_lines, visible

SHOWN_CHARS = 20_000
WIDTH, HEIGHT, BELOW = 720, 160, 24

STYLE = """
:root { color-scheme: light dark; --ink: #1c1e21; --paper: #fff; --dim: #666; --bar: #7a9cc6; --learn: #bfe8c4;
  --learn-ink: #0a3d14; --edge: #c2410c; --bad: #b00020; --line: #ddd; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e6e9; --paper: #16181b; --dim: #9aa0a6; --bar: #5b7fae;
  --learn: #1f5c2e; --learn-ink: #d5f5dc; --edge: #fb923c; --bad: #ff8a80; --line: #33363b; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 60rem;
  margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; margin: .5rem 0 1.5rem; }
th, td { padding: .15rem .9rem .15rem 0; text-align: right; border-bottom: 1px solid var(--line); }
th:first-child, td:first-child { text-align: left; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; border: 1px solid var(--line); padding: .8rem; }
mark { background: var(--learn); color: var(--learn-ink); }
.bad { color: var(--bad); font-weight: 600; } .dim { color: var(--dim); } svg { width: 100%; height: auto; }
svg rect { fill: var(--bar); } svg line { stroke: var(--edge); stroke-width: 1.5; } svg text { fill: var(--dim);
  font-size: 11px; }
"""


def inspection_page(found: Inspection) -> str:
    """The page. Everything that comes from the data is escaped."""
    title = f"Inspection of {_safe(found.source)}"
    parts = [
        f"<h1>{title}</h1>",
        *(f'<p class="bad">refused, {_safe(p.kind)}: {_safe(p.detail)}</p>' for p in found.problems),
        *(f"<p>note: {_safe(note)}</p>" for note in found.notes),
        _table(("", ""), summary_lines(found)),
        "<h2>Lengths</h2>",
        _histogram(found),
        _bucket_table(found),
        "<h2>Rows that cannot be used</h2>",
        "".join(f"<p>{_safe(line)}</p>" for line in rejection_lines(found)) or "<p>none</p>",
        "<h2>Longest</h2>",
        _table(("id", "tokens"), [(row.id, f"{row.num_tokens:,}") for row in found.longest]),
        "<h2>Rows to read</h2>",
        "<p><mark>Marked</mark> is what the drafter learns.</p>",
        *(_row(row) for row in found.rows),
    ]
    body = "\n".join(parts)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{STYLE}</style></head>\n'
        f"<body>\n{body}\n</body></html>\n"
    )


def _safe(text: str) -> str:
    return escape(visible(text), quote=True)


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    names = "".join(f"<th>{_safe(name)}</th>" for name in head)
    lines = "".join("<tr>" + "".join(f"<td>{_safe(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table>{'<tr>' + names + '</tr>' if any(head) else ''}{lines}</table>"


def _bucket_table(found: Inspection) -> str:
    rows = [
        (
            f"{bucket.top:,}",
            f"{bucket.num_samples:,}",
            f"{bucket.num_tokens:,}",
            f"{bucket.num_supervised / bucket.num_tokens:.1%}" if bucket.num_tokens else "",
            f"{bucket.num_anchors:,}",
        )
        for bucket in found.buckets
    ]
    return _table(("bucket, up to", "training samples", "tokens", "supervised", "valid anchors"), rows)


def _histogram(found: Inspection) -> str:
    """Bars of equal width, with a line at the top of every bucket."""
    longest, most = found.histogram[-1].high, max(entry.num_samples for entry in found.histogram)
    scale = WIDTH / longest
    bars = "".join(
        f'<rect x="{(entry.low - 1) * scale:.1f}" width="{max(1.0, (entry.high - entry.low + 1) * scale - 1):.1f}" '
        f'y="{HEIGHT * (1 - entry.num_samples / most):.1f}" height="{HEIGHT * entry.num_samples / most:.1f}">'
        f"<title>{entry.low:,} to {entry.high:,} tokens: {entry.num_samples:,} samples</title></rect>"
        for entry in found.histogram
    )
    edges = "".join(
        f'<line x1="{bucket.top * scale:.1f}" x2="{bucket.top * scale:.1f}" y1="0" y2="{HEIGHT}">'
        f"<title>bucket up to {bucket.top:,} tokens</title></line>"
        for bucket in found.buckets
    )
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT + BELOW}" role="img" aria-label="Number of samples by length, with the '
        f'edges of the buckets">{bars}{edges}<text x="0" y="{HEIGHT + 16}">1</text>'
        f'<text x="{WIDTH}" y="{HEIGHT + 16}" text-anchor="end">{longest:,} tokens</text></svg>'
    )


def _row(row: ShownRow) -> str:
    text = "".join(
        f"<mark>{_safe(shortened(segment, SHOWN_CHARS))}</mark>"
        if supervised
        else _safe(shortened(segment, SHOWN_CHARS))
        for segment, supervised in row.segments
    )
    head = f"{row.id}, {row.num_tokens:,} tokens, {row.num_supervised:,} supervised"
    return f'<p class="dim">{_safe(head)}</p><pre>{text}</pre>' if row.segments else f'<p class="dim">{_safe(head)}</p>'
