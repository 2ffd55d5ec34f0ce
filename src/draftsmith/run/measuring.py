"""evaluate(): what the drafter of a run is worth."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from draftsmith import evaluation
from draftsmith.config import RunConfig
from draftsmith.drafter import Drafter
from draftsmith.export import model_card, read_drafter
from draftsmith.files import atomic_write
from draftsmith.observe import Progress, peak_memory_bytes
from draftsmith.run.directory import read_json, write_json
from draftsmith.run.opening import PromptSets, prompt_sets, set_up
from draftsmith.target import (
    load_target,
    resolve_device,
)

# What `evaluate` adds to summary.json; measured again, nothing of an earlier measurement stays beside it.
MEASURED = {field.name for field in dataclasses.fields(evaluation.Speed)} | {
    *("headline_set", "acceptance_length", "acceptance_by_slot", "lossless", "num_lossless", "num_lossless_checked"),
    *("sets", "eval_dtype", "speedup", "speed_dtype"),
}


def evaluate(run: Path, config: RunConfig, prompts: PromptSets | None = None) -> dict[str, Any]:
    """Measure the exported drafter of a run, and add what was measured to its summary.json."""
    config = set_up(config)
    drafter = read_drafter(run / "drafter")
    prompts = prompts if prompts is not None else prompt_sets(config, run)
    measured = _measure_sets(config, drafter, prompts) if prompts else {}
    if config.eval.num_timed and prompts:
        measured |= _measure_speed(config, drafter, next(iter(prompts.values()))[: config.eval.num_timed])
    measured["peak_memory_bytes"] = peak_memory_bytes()
    trained = {k: v for k, v in read_json(run / "summary.json").items() if k not in MEASURED}
    summary = {**trained, **measured}
    write_json(run / "summary.json", summary)
    atomic_write(run / "drafter" / "README.md", model_card(drafter.shape, summary))
    return summary


def _measure_sets(config: RunConfig, drafter: Drafter, prompts: dict[str, list[list[int]]]) -> dict[str, Any]:
    target = load_target(config.target, dtype=config.eval.dtype, device=resolve_device(config.device))
    with Progress("decoding with the drafter") as progress:
        measured = evaluation.measure_sets(
            drafter.to(target.device, target.dtype),
            target,
            prompts,
            max_new_tokens=config.eval.max_new_tokens,
            batch_size=config.eval.batch_size,
            progress=progress.show,
        )
    return {**measured, "eval_dtype": config.eval.dtype}


def _measure_speed(config: RunConfig, drafter: Drafter, prompts: list[list[int]]) -> dict[str, Any]:
    target = load_target(config.target, dtype=config.eval.speed_dtype, device=resolve_device(config.device))
    with Progress(f"timing {len(prompts)} prompts with and without the drafter"):
        speed = evaluation.measure_speed(
            drafter.to(target.device, target.dtype), target, prompts, max_new_tokens=config.eval.max_new_tokens
        )
    return {**dataclasses.asdict(speed), "speedup": speed.speedup, "speed_dtype": config.eval.speed_dtype}
