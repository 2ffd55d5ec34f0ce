"""Commands and exit codes: 0 done, 2 something that the user can mend, 130 and 143 stopped by a signal.

Heavy imports happen inside commands, so that --help answers at once.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from draftsmith.config import load_config, parse_batching, parse_target, parse_template
from draftsmith.errors import ConfigError, DraftsmithError, Interrupted

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


@app.command()
def demo(
    overrides: Overrides = None,
    minutes: Annotated[float, typer.Option(min=0.05, help="Minutes of training.")] = 5.0,
) -> None:
    """The whole way on a laptop: train a drafter for SmolLM2-135M-Instruct, measure it, export it."""
    from draftsmith import run

    config = load_config(run.DEMO_CONFIG, [f"train.minutes={minutes}", *(overrides or [])])
    _print_summary(run.train(config, name="demo"))


@app.command()
def prepare(
    source: Annotated[Path, typer.Argument(help="JSONL (or .jsonl.gz) with `messages` or ShareGPT `conversations`.")],
    store: Annotated[Path, typer.Argument(help="Directory of the token store to write.")],
    target: TargetOption,
    max_length: Annotated[int, typer.Option(min=8, help="Longest sample in tokens; the rest is cut off.")] = 3072,
    holdout: Annotated[float, typer.Option(min=0, max=0.9, help="Share of conversations held out, by id.")] = 0.05,
    template: TemplateOption = None,
    cut: Annotated[bool, typer.Option(help="Use answers that were cut at a limit, without their end.")] = False,
    strict: Annotated[bool, typer.Option(help="Stop at the first row that cannot be used.")] = False,
) -> None:
    """Turn conversations into a memory-mapped store of tokens and loss mask."""
    from draftsmith import run

    made = run.prepare(
        source,
        store,
        parse_target(model=target),
        max_length=max_length,
        holdout=holdout,
        template=parse_template(template or []),
        cut=cut,
        strict=strict,
    )
    rows = made.accounting
    console = Console(highlight=False)
    console.print(f"{store}: {len(made):,} samples from {rows.num_kept:,} of {rows.num_read:,} rows", markup=False)
    console.print(f"held out: {len(made.holdout_indices):,}; truncated: {rows.num_truncated:,}", markup=False)
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
    dtype: Annotated[str, typer.Option(help="bfloat16 or float32.")] = "bfloat16",
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
) -> None:
    """Let the target itself answer the prompts: a drafter learns best from what its target really writes."""
    from draftsmith import run

    made = run.regenerate(
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


@app.command()
def train(
    config: Annotated[Path, typer.Argument(help="TOML file; see configs/.")],
    overrides: Overrides = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show settings and plan; load no weights.")] = False,
) -> None:
    """Train a drafter as a configuration says, then measure and export it."""
    from draftsmith import run

    settings = load_config(config, overrides)
    if dry_run:
        typer.echo(run.dry_run(settings))
        return
    _print_summary(run.train(settings, name=config.stem))


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
    from draftsmith import run

    typer.echo(
        run.plan(
            parse_batching(settings or []),
            source=source,
            counts=counts,
            policies=run.ORDER_POLICIES if compare else policy or [],
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
    """Measure target and drafter on the configured devices; predict tokens/s of colocated and every split."""
    from draftsmith import run

    typer.echo(run.tune(load_config(config, overrides), num_batches=batches))


@app.command("eval")
def evaluate(
    run_dir: Annotated[Path, typer.Argument(metavar="RUN", help="Run directory.")],
    overrides: Overrides = None,
) -> None:
    """Measure the drafter of a run again: acceptance, equality with greedy decoding, speed."""
    from draftsmith import run

    for override in overrides or []:
        if not override.startswith(("eval.", "device=", "num_threads=")):
            raise ConfigError(
                f"eval measures a finished run; {override!r} would describe another, only eval.* can be set"
            )
    _print_summary(run.evaluate(run_dir, load_config(run_dir / "config.toml", overrides)))


@app.command()
def export(
    run_dir: Annotated[Path, typer.Argument(metavar="RUN", help="Run directory.")],
    destination: Annotated[Path, typer.Argument(help="Directory to write; must not exist.")],
) -> None:
    """Write the newest checkpoint of a run in the z-lab layout, which vLLM and SGLang load."""
    from draftsmith import run

    typer.echo(f"drafter written to {run.export(run_dir, destination)}")


def main() -> None:
    """Entry point: turns errors that people can act on into one line and exit code 2."""
    signal.signal(signal.SIGTERM, _on_sigterm)
    try:
        app()
    except KeyboardInterrupt:
        _fail("stopped; nothing half-written is left behind", 130)
    except DraftsmithError as error:
        _fail(str(error), 2)
    except Interrupted as stop:
        _fail(str(stop), stop.exit_code)
    except OSError as error:
        _fail(f"{error.filename or 'the disk'}: {error.strerror or error}", 2)
    except SystemExit as stop:
        if stop.code == 130:  # what Typer makes of Ctrl-C
            _fail("stopped; nothing half-written is left behind", 130)
        raise


def _on_sigterm(_number: int, _frame: object) -> None:
    """Leave by an exception, so that whatever is half-written is cleaned up on the way out."""
    raise Interrupted(signal.SIGTERM, "nothing half-written is left behind")


def _fail(message: str, code: int) -> None:
    typer.echo(f"draftsmith: {message}", err=True)
    sys.exit(code)


def _print_summary(summary: dict[str, Any]) -> None:
    """What a person wants to know at the end, in one table."""
    table = Table(title=f"Drafter for {summary['target']}", show_header=False)
    for name, text in _summary_rows(summary):
        table.add_row(name, escape(text))
    Console(highlight=False).print(table)


def _summary_rows(summary: dict[str, Any]) -> list[tuple[str, str]]:
    minutes = summary["train_seconds"] / 60
    rows = [
        ("trained", f"{minutes:.1f} min, {summary['train_steps']:,} steps, {summary['num_anchors_trained']:,} blocks")
    ]
    for name, found in summary.get("sets", {}).items():
        text = f"{found['length']:.2f} tokens per target forward over {found['num_prompts']} prompts"
        rows.append((f"acceptance, {name}", text))
    if "lossless" in summary:
        equal, checked = summary["num_lossless"], summary["num_lossless_checked"]
        rows.append(("equal to greedy decoding", f"{equal} of {checked} answers ({summary['eval_dtype']})"))
    if "speedup" in summary:
        plain, fast = summary["baseline_tokens_per_s"], summary["speculative_tokens_per_s"]
        measured = f"{plain:.1f} -> {fast:.1f} tokens/s, {summary['speedup']:.2f}x"
        rows.append(
            ("speed, measured", f"{measured} ({summary['num_timed_prompts']} prompts, {summary['speed_dtype']})")
        )
        prediction = f"{summary['predicted_speedup']:.2f}x where verifying a block costs as much as one token"
        rows.append(("speed, predicted", prediction))
    rows.append(("drafter", summary["drafter"]))
    return rows
