"""The application, and what several commands share: options and the table at the end."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

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


def print_summary(summary: dict[str, Any]) -> None:
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
