"""Commands for a trained drafter: eval, export."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from draftsmith.cli.app import Overrides, app, print_summary
from draftsmith.config import load_config
from draftsmith.errors import ConfigError


@app.command("eval")
def evaluate(
    run_dir: Annotated[Path, typer.Argument(metavar="RUN", help="Run directory.")],
    overrides: Overrides = None,
) -> None:
    """Measure the drafter of a run again: acceptance, equality with greedy decoding, speed."""
    for override in overrides or []:
        if not override.startswith(("eval.", "device=", "num_threads=")):
            raise ConfigError(
                f"eval measures a finished run; {override!r} would describe another, only eval.* can be set"
            )
    from draftsmith.run import measuring

    print_summary(measuring.evaluate(run_dir, load_config(run_dir / "config.toml", overrides)))


@app.command()
def export(
    run_dir: Annotated[Path, typer.Argument(metavar="RUN", help="Run directory.")],
    destination: Annotated[Path, typer.Argument(metavar="DEST", help="Directory to write; must not exist.")],
    format: Annotated[str, typer.Option("--format", help="hf, speculators, transformers or gguf.")] = "hf",
    dtype: Annotated[str | None, typer.Option(help="gguf only: f32, f16, bf16 (default) or q8_0.")] = None,
    target_gguf: Annotated[
        Path | None, typer.Option(help="gguf only: a GGUF of the target, to take the tokenizer from.")
    ] = None,
) -> None:
    """Write the newest checkpoint of a run as vLLM, SGLang, Transformers or llama.cpp load it."""
    from draftsmith.run import exporting

    written = exporting.export(run_dir, destination, format=format, dtype=dtype, target_gguf=target_gguf)
    typer.echo(f"drafter written to {written}, read back and compared")
