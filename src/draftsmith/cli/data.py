"""Commands that make training data, and look at it: prepare, inspect, regenerate."""

from __future__ import annotations

import os
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from draftsmith.cli.app import TargetOption, TemplateOption, app
from draftsmith.config import parse_batching, parse_data, parse_target, parse_template


class Truncated(Enum):
    """The values of data.truncated."""

    EXCLUDE = "exclude"
    CUT = "cut"


class StoppingStrategy(Enum):
    """The values of data.stopping_strategy."""

    FIRST_EXHAUSTED = "first_exhausted"
    ALL_EXHAUSTED = "all_exhausted"


@app.command()
def prepare(
    sources: Annotated[list[str], typer.Argument(help="[WEIGHT:]FILE, DIRECTORY or hub:ORG/NAME?split=NAME; several.")],
    store: Annotated[Path, typer.Argument(help="Directory of the token store to write. Interrupted, it goes on.")],
    target: TargetOption,
    max_length: Annotated[int, typer.Option(min=8, help="Longest sample in tokens; the rest is cut off.")] = 3072,
    holdout: Annotated[float, typer.Option(min=0, max=0.9, help="Share of conversations held out, by id.")] = 0.05,
    template: TemplateOption = None,
    truncated: Annotated[Truncated, typer.Option(help="Answers cut at a limit: leave out, or use without end.")] = (
        Truncated.EXCLUDE
    ),
    text_markers: Annotated[
        tuple[str, str] | None, typer.Option(help="What opens and what ends an answer in rows of rendered text.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the order of sources that have weights.")] = 0,
    stopping_strategy: Annotated[
        StoppingStrategy,
        typer.Option(help="Where a source with a weight has no more rows: end the mix, or begin that source anew."),
    ] = StoppingStrategy.FIRST_EXHAUSTED,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes that tokenise; by default one per core.")
    ] = None,
    strict: Annotated[bool, typer.Option(help="Stop at the first row that cannot be used.")] = False,
) -> None:
    """Turn conversations into a memory-mapped store of tokens and loss mask."""
    from draftsmith.run import conversations

    settings = parse_data(
        sources=tuple(sources),
        max_length=max_length,
        holdout=holdout,
        truncated=truncated.value,
        stopping_strategy=stopping_strategy.value,
        template_kwargs=parse_template(template or []),
        text_markers=text_markers and tuple(marker.replace("\\n", "\n") for marker in text_markers),
        num_workers=workers,
    )
    made = conversations.prepare(sources, store, parse_target(model=target), settings, seed=seed, strict=strict)
    rows = made.accounting
    console = Console(highlight=False)
    console.print(f"{store}: {len(made):,} samples from {rows.num_kept:,} of {rows.num_read:,} rows", markup=False)
    if len(rows.sources) > 1:
        for name, share in rows.sources.items():
            console.print(f"  {name}: {share.num_kept:,} of {share.num_read:,} rows", markup=False)
    console.print(f"held out: {len(made.holdout_indices):,}; truncated: {rows.num_truncated:,}", markup=False)
    for note, count in rows.notes.items():
        console.print(f"noted: {count:,} x {note}", markup=False)
    for reason, rejected in rows.rejected.items():
        console.print(f"rejected: {rejected.count:,} x {reason} (first: {rejected.first})", markup=False)


@app.command()
def inspect(
    source: Annotated[str, typer.Argument(help="Token store; or conversations as for prepare, then with --target.")],
    settings: Annotated[
        list[str] | None, typer.Argument(help="Batching settings, for example max_tokens=8192 num_buckets=8.")
    ] = None,
    target: Annotated[
        str | None, typer.Option("--target", help="Whose tokenizer and chat template the store must have.")
    ] = None,
    rows: Annotated[int, typer.Option(min=0, help="Samples to show in full.")] = 3,
    max_length: Annotated[int, typer.Option(min=8, help="Of conversations: longest sample in tokens.")] = 3072,
    template: TemplateOption = None,
    truncated: Annotated[Truncated, typer.Option(help="Of conversations: answers cut at a limit, as for prepare.")] = (
        Truncated.EXCLUDE
    ),
    limit: Annotated[int | None, typer.Option(min=1, help="Of conversations: only the first rows.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
    html: Annotated[Path | None, typer.Option(help="Write one self-contained page as well.")] = None,
) -> None:
    """Look at data before training: what is learned, what was lost, and what makes it unfit (exit code 2)."""
    from draftsmith.run import inspecting

    as_prepared = parse_data(
        conversations=source,
        max_length=max_length,
        holdout=0.0,
        truncated=truncated.value,
        limit=limit,
        template_kwargs=parse_template(template or []),
    )
    found = inspecting.inspect(
        source,
        None if target is None else parse_target(model=target),
        batching=parse_batching(settings or []),
        settings=as_prepared,
        num_rows=rows,
    )
    inspecting.show(found, as_json=as_json, page=html)


@app.command()
def regenerate(
    source: Annotated[
        str, typer.Argument(help="FILE, DIRECTORY or hub:ORG/NAME?split=NAME; assistant turns are replaced.")
    ],
    destination: Annotated[Path, typer.Argument(help="JSONL to write. Interrupted, the same command goes on.")],
    target: TargetOption,
    server: Annotated[
        str | None,
        typer.Option(
            help="Let an OpenAI-compatible server answer, such as http://127.0.0.1:8000/v1; --target is then "
            "the model's name there. A key is read from OPENAI_API_KEY."
        ),
    ] = None,
    concurrency: Annotated[int, typer.Option(min=1, help="With --server: conversations under way.")] = 16,
    timeout: Annotated[
        float, typer.Option(min=0.1, max=86400, help="With --server: seconds until an answer must be there, whole.")
    ] = 600.0,
    attempts: Annotated[int, typer.Option(min=1, help="With --server: tries of a request, later and later.")] = 6,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Longest answer in tokens.")] = 512,
    temperature: Annotated[float, typer.Option(min=0, help="0 is greedy.")] = 0.0,
    batch_size: Annotated[int, typer.Option(min=1, help="Conversations decoded together.")] = 32,
    seed: Annotated[int, typer.Option(min=0, help="Of the draws when the temperature is above 0.")] = 0,
    template: TemplateOption = None,
    dtype: Annotated[str, typer.Option(help="float32, bfloat16, or auto: the faster here.")] = "auto",
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    strict: Annotated[bool, typer.Option(help="Stop at the first row that cannot be answered.")] = False,
) -> None:
    """Let the target itself answer the prompts: a drafter learns best from what its target really writes."""
    from draftsmith.run import conversations
    from draftsmith.run.conversations import AnswerSettings, ServerSettings

    wanted = AnswerSettings(max_new_tokens, temperature, seed, parse_template(template or []))
    if server is not None:
        client = ServerSettings(
            server,
            target,
            api_key=os.environ.get("OPENAI_API_KEY"),
            concurrency=concurrency,
            attempts=attempts,
            timeout_s=timeout,
        )
        made = conversations.regenerate_through(source, destination, client, settings=wanted, strict=strict)
    else:
        made = conversations.regenerate(
            source,
            destination,
            parse_target(model=target, dtype=dtype),
            device=device,
            settings=wanted,
            batch_size=batch_size,
            strict=strict,
        )
    typer.echo(
        f"{destination}: {made.num_written:,} conversations answered now, {made.num_reused:,} before; "
        f"{made.num_truncated:,} conversations were cut at {max_new_tokens} tokens"
    )
    for reason, rows in made.left_out.items():
        typer.echo(f"left out: {rows.count:,} x {reason} (first: {rows.first})")
