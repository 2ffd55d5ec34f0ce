"""Commands that look: watch, doctor."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from draftsmith.cli.app import app


@app.command()
def watch(
    run_dir: Annotated[Path, typer.Argument(metavar="RUN", help="Run directory; it is only read.")],
    once: Annotated[bool, typer.Option("--once", help="Show the run as it is now, and end.")] = False,
) -> None:
    """Look at a run in another process: the live view, from its files alone, until it ends."""
    from draftsmith.run import watching

    watching.watch(run_dir, once=once)


@app.command()
def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print what was found as JSON.")] = False,
) -> None:
    """Measure this machine in a few seconds: what would go wrong when training here, and what to do about it."""
    from draftsmith.run import doctor as checks

    findings = checks.examine()
    if as_json:
        typer.echo(checks.as_json(findings))
    else:
        checks.show(findings)
    if not checks.is_usable(findings):
        raise typer.Exit(2)
