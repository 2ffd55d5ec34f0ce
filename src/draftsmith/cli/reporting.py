"""Commands that show what a run did: report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from draftsmith.cli.app import app


@app.command()
def report(
    run_dir: Annotated[Path, typer.Argument(metavar="RUN", help="Run directory, also of a run that still trains.")],
    out: Annotated[Path | None, typer.Option(help="File to write; by default report.html in the run.")] = None,
) -> None:
    """One self-contained page about a run: what happened, in words and plots."""
    from draftsmith.run import reporting

    typer.echo(f"report written to {reporting.write_report(run_dir, out)}")
