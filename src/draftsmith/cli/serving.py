"""Commands for a trained drafter: eval, chat, export."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from draftsmith.cli.app import TemplateOption, app, print_summary
from draftsmith.cli.figures import served_text
from draftsmith.config import RunConfig, load_run_config, parse_template
from draftsmith.errors import ConfigError

RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="Run directory.")]
EvalOverrides = Annotated[list[str] | None, typer.Argument(help="Settings to override, such as eval.num_prompts=20.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the figures as JSON instead of a table.")]


@app.command("eval")
def evaluate(
    run_dir: RunArgument,
    overrides: EvalOverrides = None,
    engine: Annotated[str | None, typer.Option(help="Measure a running server: llama.cpp or openai.")] = None,
    url: Annotated[str | None, typer.Option(help="Its address, such as http://127.0.0.1:8080.")] = None,
    timeout_s: Annotated[
        float, typer.Option("--timeout", min=0.1, max=86400, help="Longest answer of a server, in s.")
    ] = 120.0,
    as_json: JsonOption = False,
) -> None:
    """Measure the drafter of a run: acceptance, equality with the target alone, speed and what it could be.

    Settings are eval.*, device and num_threads: eval.temperature=0.8, eval.num_math_prompts=20,
    eval.prompts=mine.jsonl.
    """
    config = _measuring_config(run_dir, overrides)
    if (engine is None) != (url is None):
        raise ConfigError("a server is measured with both --engine and --url; give the one that is missing")
    from draftsmith.run import measuring

    if engine is not None and url is not None:
        served = measuring.evaluate_server(run_dir, config, engine=engine, url=url, timeout_s=timeout_s)
        typer.echo(json.dumps(served, indent=2) if as_json else served_text(served))
        return
    summary = measuring.evaluate_finished(run_dir, config)
    if as_json:
        typer.echo(json.dumps(summary, indent=2))
    else:
        print_summary(summary, detailed=True)


@app.command()
def chat(
    run_dir: RunArgument,
    overrides: EvalOverrides = None,
    prompt: Annotated[str | None, typer.Option(help="Answer this and leave.")] = None,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Longest answer in tokens.")] = 512,
    template: TemplateOption = None,
) -> None:
    """Talk to the target in the terminal, and see which of its tokens the drafter had proposed."""
    config = _measuring_config(run_dir, [f"eval.max_new_tokens={max_new_tokens}", *(overrides or [])])
    from draftsmith.run import chatting

    chatting.chat(run_dir, config, prompt=prompt, template=parse_template(template or []))


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


def _measuring_config(run_dir: Path, overrides: list[str] | None) -> RunConfig:
    """The run's own configuration. Only how it is measured can be changed."""
    for override in overrides or []:
        if not override.startswith(("eval.", "device=", "num_threads=")):
            raise ConfigError(
                f"this measures a finished run; {override!r} would describe another, only eval.*, device and "
                "num_threads can be set"
            )
    return load_run_config(run_dir, overrides)
