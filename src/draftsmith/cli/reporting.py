"""Commands that show what runs did: report, compare, serve-report."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from draftsmith.cli.app import app

if TYPE_CHECKING:
    from draftsmith.run.reporting import Comparison

RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="Run directory, also of a run that still trains.")]


@app.command()
def report(
    run_dir: RunArgument,
    out: Annotated[Path | None, typer.Option(help="File to write; by default report.html in the run.")] = None,
) -> None:
    """One self-contained page about a run: what happened, in words and plots."""
    from draftsmith.run import reporting

    typer.echo(f"report written to {reporting.write_report(run_dir, out)}")


@app.command()
def compare(
    run_dirs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Two or more run directories.")],
    out: Annotated[Path, typer.Option(help="Page to write.")] = Path("compare.html"),
) -> None:
    """Runs side by side: figures, settings that differ, curves."""
    from draftsmith.run import reporting

    _print(reporting.compare(run_dirs, out))
    typer.echo(f"page written to {out}")


@app.command("serve-report")
def serve_report(
    run_dir: RunArgument,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of 127.0.0.1; 0 takes a free one.")] = 8077,
) -> None:
    """Show the report of a run on 127.0.0.1, renewing itself while the run goes on; Ctrl-C ends it."""
    from draftsmith.run import reporting

    reporting.serve(run_dir, port=port, tell=lambda url: typer.echo(f"{run_dir} is shown on {url}; Ctrl-C ends it"))


def _print(found: Comparison) -> None:
    table = Table("", *(escape(name) for name in found.names))
    for row in found.figures:
        cells = [f"[bold]{escape(v)}[/bold]" if i == row.best else escape(v) for i, v in enumerate(row.values)]
        table.add_row(row.name, *cells)
    table.add_section()
    for row in found.settings:
        table.add_row(escape(row.name), *(escape(value) for value in row.values))
    Console(highlight=False).print(table)
