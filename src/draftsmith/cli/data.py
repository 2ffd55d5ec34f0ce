"""Commands that make training data: prepare, regenerate."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from draftsmith.cli.app import TargetOption, TemplateOption, app
from draftsmith.config import parse_data, parse_target, parse_template


class Truncated(Enum):
    """The values of data.truncated."""

    EXCLUDE = "exclude"
    CUT = "cut"


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
    for reason, (count, first) in rows.rejected.items():
        console.print(f"rejected: {count:,} x {reason} (first: {first})", markup=False)


@app.command()
def regenerate(
    source: Annotated[Path, typer.Argument(help="JSONL of conversations; assistant turns in it are replaced.")],
    destination: Annotated[Path, typer.Argument(help="JSONL to write. Interrupted, the same command goes on.")],
    target: TargetOption,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Longest answer in tokens.")] = 512,
    temperature: Annotated[float, typer.Option(min=0, help="0 is greedy.")] = 0.0,
    batch_size: Annotated[int, typer.Option(min=1, help="Conversations decoded together.")] = 32,
    seed: Annotated[int, typer.Option(min=0, help="Of the draws when the temperature is above 0.")] = 0,
    template: TemplateOption = None,
    dtype: Annotated[str, typer.Option(help="float32, bfloat16, or auto: the faster here.")] = "auto",
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
) -> None:
    """Let the target itself answer the prompts: a drafter learns best from what its target really writes."""
    from draftsmith.run import conversations

    made = conversations.regenerate(
        source,
        destination,
        parse_target(model=target, dtype=dtype),
        device=device,
        template=parse_template(template or []),
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        batch_size=batch_size,
        seed=seed,
    )
    typer.echo(
        f"{destination}: {made.num_written:,} conversations answered now, {made.num_reused:,} before; "
        f"{made.num_truncated:,} conversations were cut at {max_new_tokens} tokens"
    )
