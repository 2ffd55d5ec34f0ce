"""Commands that train, and that say beforehand what training would do: demo, train, plan, tune."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from draftsmith.cli.app import Overrides, app, print_summary
from draftsmith.config import load_config, load_run_config, parse_batching


@app.command()
def demo(
    overrides: Overrides = None,
    minutes: Annotated[float, typer.Option(min=0.05, help="Minutes of training.")] = 5.0,
) -> None:
    """The whole way on a laptop: train a drafter for SmolLM2-135M-Instruct, measure it, export it."""
    from draftsmith.run import opening, starting

    config = load_config(opening.DEMO_CONFIG, [f"train.minutes={minutes}", *(overrides or [])])
    _print(starting.train(config, name="demo"))


@app.command()
def train(
    config: Annotated[Path, typer.Argument(help="TOML file; see configs/. Or the directory of a run to go on with.")],
    overrides: Overrides = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show settings and plan; load no weights.")] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the run in run.dir; without it a new one may begin there.")
    ] = False,
    weights: Annotated[
        Path | None, typer.Option("--from", help="Checkpoint or run directory whose weights a new run starts from.")
    ] = None,
) -> None:
    """Train a drafter as a configuration says, then measure and export it; go on with an unfinished run in run.dir."""
    from draftsmith.run import planning, starting

    settings = load_config(*_what_to_train(config, list(overrides or []), weights))
    if dry_run:
        typer.echo(planning.dry_run(settings))
        return
    _print(starting.train(settings, name=config.stem, resume=resume))


def _print(summary: dict[str, Any] | None) -> None:
    """Of several ranks only one has something to show."""
    if summary is not None:
        print_summary(summary)


def _what_to_train(config: Path, overrides: list[str], weights: Path | None) -> tuple[Path, list[str]]:
    """The TOML file and overrides that a run directory and --from stand for."""
    if weights is not None:
        overrides.append(f"drafter.weights={json.dumps(str(weights.absolute()))}")
    if config.is_dir():
        load_run_config(config)
        overrides.append(f"run.dir={json.dumps(str(config))}")
        config = config / "config.toml"
    return config, overrides


@app.command()
def checkpoints(
    run_dir: Annotated[Path, typer.Argument(metavar="RUN", help="Run directory.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON instead of a table.")] = False,
) -> None:
    """List the checkpoints of a run and verify each; exit code 1 if one of them is damaged."""
    from draftsmith.run.checkpoints import list_checkpoints, print_checkpoints

    listed = list_checkpoints(run_dir)
    print_checkpoints(listed, as_json=as_json)
    if any(each.problem for each in listed):
        raise typer.Exit(1)


@app.command()
def capture(
    config: Annotated[Path, typer.Argument(help="TOML file; see configs/.")],
    overrides: Overrides = None,
) -> None:
    """Compute the target's hidden states ahead of training and keep them on disk."""
    from draftsmith.run import capturing

    typer.echo(capturing.capture(load_config(config, overrides)))


@app.command()
def plan(
    source: Annotated[
        Path | None, typer.Argument(help="Token store, or a file with one length in tokens a line.")
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Argument(help="Batching settings, for example max_tokens=8192 num_buckets=8.")
    ] = None,
    counts: Annotated[str | None, typer.Option(help="Batches per bucket instead of lengths: 2120,4017,...")] = None,
    policy: Annotated[list[str] | None, typer.Option(help="Order policy; may be given several times.")] = None,
    compare: Annotated[bool, typer.Option("--compare", help="Show all order policies side by side.")] = False,
    world_size: Annotated[int, typer.Option(min=1, help="Ranks to deal the batches to.")] = 1,
    grad_accum: Annotated[int, typer.Option(min=1, help="Batches per rank and optimiser step.")] = 1,
    deal: Annotated[str, typer.Option(help="coloring (certified) or greedy (fewest repeats).")] = "coloring",
    tail: Annotated[str, typer.Option(help="Last incomplete group of batches: drop or refill.")] = "drop",
    seed: Annotated[int, typer.Option(min=0)] = 0,
    epoch: Annotated[int, typer.Option(min=0)] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON instead of tables.")] = False,
    plot: Annotated[
        Path | None, typer.Option(help="Draw order, drift and remaining share: .html, .svg or .png.")
    ] = None,
) -> None:
    """Show the order of an epoch before anything runs, and say in plain words whether to train with it."""
    from draftsmith.run import planning

    typer.echo(
        planning.plan(
            parse_batching(settings or []),
            source=source,
            counts=counts,
            policies=planning.ORDER_POLICIES if compare else policy or [],
            world_size=world_size,
            grad_accum=grad_accum,
            deal=deal,
            tail=tail,
            seed=seed,
            epoch=epoch,
            as_json=as_json,
            plot_path=plot,
        )
    )


@app.command()
def tune(
    config: Annotated[Path, typer.Argument(help="TOML file; see configs/.")],
    overrides: Overrides = None,
    batches: Annotated[int, typer.Option(min=1, help="Planned batches to measure on.")] = 6,
) -> None:
    """Measure target and drafter on the devices of all processes; predict tokens/s of colocated and every split."""
    from draftsmith.run import starting

    report = starting.tune(load_config(config, overrides), num_batches=batches)
    if report is not None:
        typer.echo(report)
