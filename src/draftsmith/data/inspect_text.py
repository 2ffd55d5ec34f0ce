"""An inspection for people: tables and coloured rows in a terminal, visible marks where there is no colour."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from draftsmith.data.inspect import Inspection, ShownRow

SUPERVISED = "bold black on green"
OPEN, CLOSE = "⟦", "⟧"
SHOWN_CHARS = 600  # of one stretch of a row; the middle of a longer one is left out
BAR_WIDTH = 24


def print_inspection(found: Inspection, console: Console) -> None:
    """The whole report. Without colour, supervised text stands between marks."""
    console.print(Text(f"{found.source}", style="bold"), soft_wrap=True)
    for name, text in summary_lines(found):
        console.print(Text.assemble((f"  {name:<22}", "dim"), visible(text)), soft_wrap=True)
    console.print(_bucket_table(found))
    _print_rejections(found, console)
    if found.longest:
        shown = ", ".join(f"{short_name(row.id)} ({row.num_tokens:,} tokens)" for row in found.longest)
        console.print(Text(f"longest: {shown}"), soft_wrap=True)
    _print_rows(found, console)
    for note in found.notes:
        console.print(Text(f"note: {visible(note)}", style="yellow"), soft_wrap=True)
    for problem in found.problems:
        console.print(Text(f"refused, {problem.kind}: {visible(problem.detail)}", style="bold red"), soft_wrap=True)


def summary_lines(found: Inspection) -> list[tuple[str, str]]:
    """The figures in words: name, value."""
    rows = found.accounting
    rejected = sum(entry["count"] for entry in rows["rejected"])
    lines = [
        ("rows", f"{rows['num_read']:,} read = {rows['num_kept']:,} kept + {rejected:,} rejected"),
        ("samples", f"{found.num_samples:,}, of which {found.num_holdout:,} are held out"),
        ("tokens", f"{found.num_tokens:,}"),
        ("supervised", f"{found.num_supervised:,} tokens, {found.supervised_share:.1%}"),
        ("valid anchors", f"{found.num_anchors:,}"),
        ("truncated", f"{found.num_truncated:,} samples"),
        ("duplicates", f"{found.num_duplicates:,} samples; {found.num_leaked:,} held-out ones are also trained on"),
        ("template", found.template_sha256[:16]),
        ("tokenizer", found.tokenizer_sha256[:16]),
    ]
    if found.num_cut_answers is not None:
        lines.insert(6, ("cut answers", f"{found.num_cut_answers:,}"))
    return lines


def visible(text: str) -> str:
    """Control characters as pictures of themselves: text of a data set must not steer a terminal."""
    return "".join(_picture(letter) for letter in text)


def short_name(name: str) -> str:
    shown = visible(name).replace("\n", "␊")
    return shown if len(shown) <= 40 else shown[:39] + "…"


def shortened(text: str, limit: int = SHOWN_CHARS) -> str:
    """Both ends of a long text, and how much was left out between them."""
    if len(text) <= limit:
        return text
    left_out = len(text) - limit
    return f"{text[: limit // 2]} … {left_out:,} characters … {text[-(limit // 2) :]}"


def _picture(letter: str) -> str:
    code = ord(letter)
    if letter in "\n\t" or (code >= 0x20 and not 0x7F <= code <= 0x9F and letter not in "\u202a\u202b\u202d\u202e"):
        return letter
    return chr(0x2400 + code) if code < 0x20 else "␡" if code == 0x7F else f"\\u{code:04x}"


def _bucket_table(found: Inspection) -> Table:
    table = Table(title="training samples by length bucket", title_justify="left")
    for name in ("up to", "samples", "", "tokens", "supervised", "anchors"):
        table.add_column(name, justify="left" if not name else "right")
    most = max((bucket.num_samples for bucket in found.buckets), default=0) or 1
    for bucket in found.buckets:
        share = bucket.num_supervised / bucket.num_tokens if bucket.num_tokens else 0.0
        bar = "█" * round(BAR_WIDTH * bucket.num_samples / most)
        cells = f"{bucket.top:,}", f"{bucket.num_samples:,}", bar, f"{bucket.num_tokens:,}"
        table.add_row(*cells, f"{share:.1%}", f"{bucket.num_anchors:,}")
    return table


def rejection_lines(found: Inspection) -> Iterator[str]:
    """One line for every reason with the places, and one for everything that was done to rows that were kept."""
    for entry in found.accounting["rejected"]:
        yield f"rejected: {entry['count']:,} x {entry['reason']} ({_where(entry)})"
    for note, count in found.accounting["notes"].items():
        yield f"noted: {count:,} x {note}"


def _where(entry: dict[str, Any]) -> str:
    """The known lines of every source, how many more there are, and what is said about the first."""
    places = entry["places"]
    lines: dict[str, list[str]] = {}
    for place in places:
        lines.setdefault(place["source"], []).append(str(place["line"]))
    parts = [
        f"{source}{', ' if source else ''}line{'s' if len(numbers) > 1 else ''} {', '.join(numbers)}"
        for source, numbers in lines.items()
    ]
    parts += [f"and {entry['count'] - len(places):,} more"] if entry["count"] > len(places) else []
    parts += [f"first: {places[0]['detail']}"] if places[0]["detail"] else []
    return "; ".join(parts)


def _print_rejections(found: Inspection, console: Console) -> None:
    for line in rejection_lines(found):
        console.print(Text(visible(line)), soft_wrap=True)


def _print_rows(found: Inspection, console: Console) -> None:
    if not any(row.segments for row in found.rows):
        return
    coloured = console.is_terminal and console.color_system is not None
    legend = Text("supervised", style=SUPERVISED) if coloured else Text(f"{OPEN}supervised{CLOSE}")
    console.print(Text.assemble("rows to read, ", legend, " is what the drafter learns:"))
    for row in found.rows:
        console.rule(Text(f"{short_name(row.id)}, {row.num_tokens:,} tokens, {row.num_supervised:,} supervised"))
        console.print(_row_text(row, coloured=coloured), soft_wrap=True)


def _row_text(row: ShownRow, *, coloured: bool) -> Text:
    text = Text()
    for segment, supervised in row.segments:
        shown = visible(shortened(segment))
        if not supervised:
            text.append(shown)
        elif coloured:
            text.append(shown, style=SUPERVISED)
        else:
            text.append(f"{OPEN}{shown}{CLOSE}")
    return text
