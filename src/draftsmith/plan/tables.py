"""Aligned text tables for the report."""

from __future__ import annotations

from collections.abc import Sequence

from draftsmith.plan.audit import OrderAudit, RankAudit
from draftsmith.plan.padding import BucketAudit

_MOST_RANKS = 16


def text_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """First column to the left, the others to the right."""
    widths = [max(len(line[column]) for line in (header, *rows)) for column in range(len(header))]
    lines = []
    for line in (header, *rows):
        cells = [cell.rjust(width) for cell, width in zip(line, widths, strict=True)]
        lines.append("  ".join([line[0].ljust(widths[0]), *cells[1:]]).rstrip())
    return "\n".join([lines[0], "-" * max(len(line) for line in lines), *lines[1:]])


def bucket_table(buckets: Sequence[BucketAudit]) -> str:
    """Every bucket: lengths, batches and waste; the whole plan in the last line."""
    rows = [
        [
            "all" if audit.bucket < 0 else str(audit.bucket),
            f"{audit.bottom}-{audit.top}",
            f"{audit.samples:,}",
            f"{audit.batches:,}",
            f"{audit.share:.1%}",
            f"{audit.pad_waste:.1%}",
            f"{audit.slot_waste:.1%}",
        ]
        for audit in buckets
    ]
    return text_table(["bucket", "tokens", "samples", "batches", "share", "padding", "unused budget"], rows)


def order_table(orders: Sequence[tuple[str, OrderAudit, float]]) -> str:
    """Every order in one line, the minimum possible in brackets."""
    rows = [
        [
            policy,
            f"{audit.max_drift:,.2f}",
            f"{audit.longest_run:,} ({audit.min_longest_run:,})",
            f"{audit.adjacent_repeats:,} ({audit.min_adjacent_repeats:,})",
            f"{audit.tail:,}",
            f"{min((at for at in audit.exhaustion if at), default=1.0):.2%}",
            " ".join(f"{size}:{deviation:.1f}" for size, deviation in audit.windows.items()),
            f"{audit.spectral_peak:,.0f}",
            f"{max(map(abs, audit.autocorrelation[10:])):.3f}",
            "-" if audit.overlap is None else f"{audit.overlap:.3f} ({audit.expected_overlap:.3f})",
            f"{seconds:.3f} s",
        ]
        for policy, audit, seconds in orders
    ]
    header = [
        "order",
        "max drift",
        "longest run (min)",
        "repeats (min)",
        "tail",
        "first bucket out",
        "worst in windows",
        "spectral peak",
        "rhythm 11-50",
        "as last epoch (chance)",
        "time",
    ]
    return text_table(header, rows)


def rank_table(ranks: Sequence[RankAudit]) -> str:
    """Every rank, or the worst in each respect when there are many."""
    rows = [
        [
            str(rank.rank),
            f"{rank.steps:,}",
            f"{rank.max_drift:.2f}",
            f"{rank.adjacent_repeats:,}",
            str(rank.longest_run),
        ]
        for rank in ranks[:_MOST_RANKS]
    ]
    if len(ranks) > _MOST_RANKS:
        drift, repeats = max(rank.max_drift for rank in ranks), max(rank.adjacent_repeats for rank in ranks)
        longest = max(rank.longest_run for rank in ranks)
        rows = [[f"worst of {len(ranks)}", f"{ranks[0].steps:,}", f"{drift:.2f}", f"{repeats:,}", str(longest)]]
    return text_table(["rank", "steps", "max drift", "repeats", "longest run"], rows)
