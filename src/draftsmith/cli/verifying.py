"""The command verify: other people's code says what it finds in an export."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from draftsmith.cli.app import app
from draftsmith.errors import EngineError

if TYPE_CHECKING:
    from draftsmith.run.verifying import Verdict

MARKS = {None: "-", True: "yes", False: "NO"}


@app.command()
def verify(
    export_dir: Annotated[Path, typer.Argument(metavar="EXPORT", help="Directory that `export` wrote.")],
    target: Annotated[
        str | None, typer.Option(help="The target; by default the one that the model card names.")
    ] = None,
    target_gguf: Annotated[Path | None, typer.Option(help="The target as GGUF, for llama-server.")] = None,
    python: Annotated[
        list[Path] | None, typer.Option(help="Interpreter of another environment that has engines; may be repeated.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Ask every engine that is installed whether it loads the export, drafts the same tokens, accepts as many."""
    from draftsmith.run import verifying

    verdicts = verifying.verify(export_dir, target=target, target_gguf=target_gguf, pythons=python or [])
    if as_json:
        typer.echo(verifying.as_json(verdicts))
    else:
        _print(verdicts)
    failed = verifying.failures(verdicts)
    if failed:
        raise EngineError(f"{len(failed)} of {len(verdicts)} readers failed: {' / '.join(failed)}")


def _print(verdicts: list[Verdict]) -> None:
    table = Table()
    for column in ("reader", "loads", "tensors", "drafts", "acceptance", "verdict"):
        table.add_column(column, no_wrap=True)
    for v in verdicts:
        marks = [MARKS[check] for check in (v.loads, v.same_tensors, v.same_drafts, v.same_acceptance)]
        table.add_row(f"{v.reader} {v.version}".strip(), *marks, v.status)
    console = Console(highlight=False)
    console.print(table)
    for v in verdicts:
        console.print(escape(f"{v.reader}: {v.detail}"))
