"""A snapshot as lines of a terminal: pure, for any width from 20 columns on, readable without colour.

Lines are built as pieces of (text, style) and yielded as segments: laying out tables and wrapping text by rich costs
several times as much, and a view is drawn thousands of times in a run.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, RenderResult
from rich.segment import Segment

from draftsmith.observe.snapshot import FlowShares, Snapshot, StageShares

Pieces = list[tuple[str, str]]
MIN_WIDTH = 20
WIDEST = 132  # a bar or a sentence longer than this helps nobody


@dataclass(frozen=True)
class Glyphs:
    """What bars are made of: four different signs, so that colour only helps."""

    done: str
    left: str
    busy: str
    starved: str
    blocked: str


BLOCKS = Glyphs(done="━", left="─", busy="█", starved="░", blocked="▒")
ASCII = Glyphs(done="=", left="-", busy="#", starved=".", blocked="+")


@dataclass(frozen=True)
class Picture:
    """What rich prints: as wide as the console, and never higher than it."""

    snapshot: Snapshot

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        glyphs = ASCII if options.ascii_only or options.legacy_windows else BLOCKS
        drawn = lines(self.snapshot, options.max_width, glyphs=glyphs, max_height=max(1, console.height - 1))
        for pieces in drawn:
            yield from (Segment(text, console.get_style(style) if style else None) for text, style in pieces)
            yield Segment.line()


def lines(snapshot: Snapshot, width: int, *, glyphs: Glyphs = BLOCKS, max_height: int = 100) -> list[Pieces]:
    """The view, most important first to stay where height is short. Every line fits into `width` columns."""
    width = max(MIN_WIDTH, width)
    ranked = [*_head(snapshot, width, glyphs), *_learning(snapshot, width)]
    if snapshot.flow is not None:
        ranked += _flow(snapshot.flow, width, glyphs)
    ranked += _tail(snapshot)
    kept = sorted(range(len(ranked)), key=lambda index: (ranked[index][0], index))[:max_height]
    return [_fit(ranked[index][1], width) for index in sorted(kept)]


def one_line(snapshot: Snapshot) -> str:
    """The same for a log: everything that changes, on one line."""
    parts = [] if snapshot.progress is None else [f"{snapshot.progress:4.0%}"]
    parts.append(f"step {snapshot.step:,}")
    if snapshot.loss is not None:
        parts.append(f"loss {snapshot.loss:.3f}")
    if snapshot.acceptance is not None:
        parts.append(f"accepted in training {snapshot.acceptance:.2f}")
    if snapshot.held_out is not None:
        parts.append(f"held out {snapshot.held_out:.2f}")
    if snapshot.lr is not None:
        parts.append(f"lr {snapshot.lr:.2e}")
    if snapshot.left_s is not None:
        parts.append(f"{duration(snapshot.left_s)} left")
    if snapshot.flow is not None:
        busiest = max(snapshot.flow.stages, key=lambda stage: stage.busy, default=None)
        if busiest is not None:
            parts.append(f"slowest: {busiest.name} ({busiest.busy:.0%} busy, {busiest.tokens_per_s:,.0f} tokens/s)")
    if snapshot.num_skipped or snapshot.num_spikes:
        parts.append(f"skipped {snapshot.num_skipped}, spikes {snapshot.num_spikes}")
    return "  ".join(parts)


def duration(seconds: float) -> str:
    """1:05, 12:00, 3:00:05, 4 d 3 h."""
    whole = round(min(max(seconds, 0.0), 1e12))
    if whole >= 172_800:
        return f"{whole // 86_400} d {whole % 86_400 // 3600} h"
    hours, minutes = whole // 3600, whole % 3600 // 60
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"


def size(num_bytes: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if abs(num_bytes) < 999.5:
            return f"{num_bytes:.0f} {unit}" if unit == "B" or num_bytes >= 10 else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:,.1f} TB"


def count(value: float) -> str:
    """At most five columns: 950, 9,500, 95.0k, 9.5M."""
    if abs(value) < 9_999.5:
        return f"{value:,.0f}"
    return f"{value / 1e3:.0f}k" if abs(value) < 999_500 else f"{value / 1e6:.1f}M"


def _head(snapshot: Snapshot, width: int, glyphs: Glyphs) -> Iterator[tuple[int, Pieces]]:
    is_well = snapshot.phase in ("training", "measuring", "ended")
    style = "bold green" if snapshot.phase == "ended" else "bold" if is_well else "bold yellow"
    yield 1, [(snapshot.title, "bold cyan"), ("  ", ""), (snapshot.phase, style)]
    times = [f"step {snapshot.step:,}"]
    if snapshot.epoch is not None:
        times.append(f"epoch {snapshot.epoch}")
    times.append(f"{duration(snapshot.elapsed_s)} gone")
    if snapshot.left_s is not None:
        times.append(f"{duration(snapshot.left_s)} left")
    text = "  ".join(times)
    if snapshot.progress is None:
        yield 0, [(text, "")]
        return
    room = min(width, WIDEST) - len(text) - 7
    bar = _bar([(snapshot.progress, glyphs.done, "green"), (1 - snapshot.progress, glyphs.left, "dim")], room)
    yield 0, [*bar, (f"{snapshot.progress:5.0%}  ", "bold"), (text, "")]


def _learning(snapshot: Snapshot, width: int) -> Iterator[tuple[int, Pieces]]:
    pieces: Pieces = []
    if snapshot.loss is not None:
        pieces += [("loss ", "dim"), (f"{snapshot.loss:.3f}", "bold")]
        if snapshot.loss_before is not None:
            pieces.append((f" ({snapshot.loss - snapshot.loss_before:+.3f})", "dim"))
    if snapshot.acceptance is not None:
        pieces += [("  accepted ", "dim"), (f"{snapshot.acceptance:.2f}", "bold")]
    if snapshot.held_out is not None:
        pieces += [("  held out ", "dim"), (f"{snapshot.held_out:.2f}", "bold")]
    if snapshot.lr is not None:
        pieces += [("  lr ", "dim"), (f"{snapshot.lr:.2e}", "")]
    elif snapshot.lr_factor is not None:
        pieces += [("  lr ", "dim"), (f"{snapshot.lr_factor:.0%} of its peak", "")]
    if snapshot.grad_norm is not None and width >= 80:
        pieces += [("  gradient ", "dim"), (f"{snapshot.grad_norm:.2f}", "")]
    if pieces:
        yield 2, pieces
    if len(snapshot.loss_by_bucket) > 1:
        losses = "  ".join(f"{bucket}: {loss:.2f}" for bucket, loss in snapshot.loss_by_bucket)
        for index, text in enumerate(_wrapped(losses, width - 10, sep="  ")):
            yield 5, [("by bucket " if index == 0 else " " * 10, "dim"), (text, "")]


def _flow(flow: FlowShares, width: int, glyphs: Glyphs) -> Iterator[tuple[int, Pieces]]:
    name_width = min(12, max((cell_len(_name(stage)) for stage in flow.stages), default=0))
    bar_width = max(0, min(60, width - name_width - 39))
    legend = f"{glyphs.busy} busy  {glyphs.starved} starved  {glyphs.blocked} blocked"
    legend = f"{legend}  the last {duration(flow.wall_s)}"
    columns = f" {'per cent':>11} {'tokens/s':>8} {'waiting':>15}"
    if bar_width < len(legend):
        yield 6, [(legend, "dim")]
        legend = ""
    yield 6, [(f"{'':{name_width + 1}}{legend:<{bar_width}}{columns}", "dim")]
    for stage in flow.stages:
        shares = [
            (stage.busy, glyphs.busy, "green"),
            (stage.starved, glyphs.starved, "yellow"),
            (stage.blocked, glyphs.blocked, "blue"),
        ]
        percent = "/".join(f"{share:3.0%}"[:-1] for share, _, _ in shares)
        yield (
            3,
            [
                (f"{set_cell_size(_name(stage), name_width)} ", "bold"),
                *_bar(shares, bar_width),
                (f" {percent:>11} {count(stage.tokens_per_s):>8} {_fill(stage):>15}", ""),
                (f"  {stage.num_retries} retries" if stage.num_retries else "", "yellow"),
            ],
        )
    budget = "no bound" if flow.budget_bytes is None else f"{size(flow.budget_bytes)}"
    yield 7, [("hidden states in memory ", "dim"), (f"{size(flow.credited_bytes)} of {budget}", "")]
    for index, text in enumerate(_wrapped(flow.verdict, min(width, WIDEST) - 2)):
        yield 4 + min(index, 1), [("> " if index == 0 else "  ", "dim"), (text, "")]


def _tail(snapshot: Snapshot) -> Iterator[tuple[int, Pieces]]:
    if snapshot.num_skipped or snapshot.num_spikes:
        yield 3, [(f"guards: {snapshot.num_skipped:,} skipped, {snapshot.num_spikes:,} spikes", "bold yellow")]
    elif snapshot.step:
        yield 8, [("guards: no step skipped, no spike", "dim")]
    if snapshot.last_event:
        age = "" if snapshot.last_event_age_s is None else f", {duration(snapshot.last_event_age_s)} ago"
        yield 9, [(f"last event{age}: ", "dim"), (snapshot.last_event, "")]
    for note in snapshot.notes:
        yield 2, [("! ", "bold yellow"), (note, "yellow")]


def _name(stage: StageShares) -> str:
    return stage.name if stage.num_workers == 1 else f"{stage.name} x{stage.num_workers}"


def _fill(stage: StageShares) -> str:
    """Results that are done and wait, of how many may be under way, and the bytes they hold."""
    bound = f"/{stage.max_items}" if stage.max_items else ""
    return f"{stage.queue_items}{bound} {size(stage.queue_bytes):>7}"


def _bar(parts: list[tuple[float, str, str]], width: int) -> Pieces:
    """Shares of a whole as runs of signs, `width` together: the ends are rounded, so that no column is lost."""
    pieces: Pieces = []
    share, column = 0.0, 0
    for part, sign, style in parts:
        share += max(0.0, part)
        end = min(width, round(share * width))
        pieces.append((sign * max(0, end - column), style))
        column = max(column, end)
    pieces.append((" " * max(0, width - column), ""))
    return pieces


def _wrapped(text: str, width: int, *, sep: str = " ", most: int = 3) -> list[str]:
    """At most `most` lines, broken at `sep`; the last one may be too long."""
    wrapped: list[str] = []
    while cell_len(text) > width and len(wrapped) < most - 1:
        cut = text.rfind(sep, 0, width + 1)
        cut = cut if cut > 0 else width
        wrapped.append(text[:cut])
        text = text[cut:].strip()
    return [*wrapped, text]


def _fit(pieces: Pieces, width: int) -> Pieces:
    """Cut off what does not fit; a sign that is two columns wide counts as two."""
    fitted, column = [], 0
    for text, style in pieces:
        if column >= width:
            break
        room = width - column
        used = cell_len(text)
        if used > room:
            text, used = set_cell_size(text, room), room
        fitted.append((text, style))
        column += used
    return fitted
