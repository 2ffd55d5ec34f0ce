"""The application, and what several commands share: options and the table at the end."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from draftsmith.cli.figures import measured_rows

app = typer.Typer(
    name="draftsmith",
    help="Train a DFlash drafter for your language model: same answers, sooner. Start with: draftsmith demo",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

TargetOption = Annotated[
    str, typer.Option("--target", help="Directory or hub name of a causal language model, or smollm2-135m.")
]
TemplateOption = Annotated[
    list[str] | None, typer.Option("--template", help="Argument of the chat template, such as enable_thinking=false.")
]
Overrides = Annotated[
    list[str] | None, typer.Argument(help="Settings to override, for example train.max_steps=100 run.dir=runs/mine.")
]


def print_summary(summary: dict[str, Any], *, detailed: bool = False) -> None:
    """What a person wants to know at the end, in one table."""
    table = Table(title=f"Drafter for {summary['target']}", show_header=False)
    minutes = summary["train_seconds"] / 60
    trained = f"{minutes:.1f} min, {summary['train_steps']:,} steps, {summary['num_anchors_trained']:,} blocks"
    rows = [("trained", trained), *measured_rows(summary, detailed=detailed), ("drafter", summary["drafter"])]
    for name, text in rows:
        table.add_row(name, escape(text))
    Console(highlight=False).print(table)
