"""evaluate(): what the drafter of a run is worth."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import Any, get_args

import torch

from draftsmith import evaluation
from draftsmith.config import EvalConfig, RunConfig
from draftsmith.drafter import Drafter
from draftsmith.errors import ConfigError, DataError
from draftsmith.export import read_drafter
from draftsmith.files import atomic_write
from draftsmith.observe import Progress, describe_environment, peak_memory_bytes
from draftsmith.run.directory import read_json, write_json
from draftsmith.run.examples import Kept, keep_some, write_examples
from draftsmith.run.exporting import card_of
from draftsmith.run.opening import PromptSets, prompt_sets, set_up, skipped_sets
from draftsmith.target import Sampling, Target, load_target, load_tokenizer, resolve_device

# What `evaluate` adds to summary.json; measured again, nothing of an earlier measurement stays beside it.
MEASURED = {field.name for field in dataclasses.fields(evaluation.Speed)} | {
    *("headline_set", "acceptance_length", "acceptance_by_slot", "lossless", "num_lossless", "num_lossless_checked"),
    *("sets", "skipped_sets", "decoding", "eval_dtype", "speedup", "speed_dtype", "costs", "predicted_speedup"),
}


def evaluate(run: Path, config: RunConfig, prompts: PromptSets | None = None) -> dict[str, Any]:
    """Measure the exported drafter of a run, and add what was measured to its summary.json."""
    config = set_up(config)
    drafter = read_drafter(run / "drafter")
    prompts = prompts if prompts is not None else prompt_sets(config, run)
    measured: dict[str, Any] = {"skipped_sets": skipped_sets(config, prompts)}
    if prompts:
        measured |= _measure_sets(run, config, drafter, prompts)
    if config.eval.num_timed and prompts:
        name, headline = next(iter(prompts.items()))
        measured |= _measure_speed(config, drafter, name, headline, measured["acceptance_by_slot"])
    measured["peak_memory_bytes"] = peak_memory_bytes()
    trained = {k: v for k, v in read_json(run / "summary.json").items() if k not in MEASURED}
    summary = {**trained, **measured}
    write_json(run / "summary.json", summary)
    atomic_write(run / "drafter" / "README.md", card_of(drafter.shape, summary, config))
    return summary


def evaluate_finished(run: Path, config: RunConfig) -> dict[str, Any]:
    """The same for a finished run. Raises DataError if nothing is there to be measured."""
    return evaluate(run, config, _prompts_of(run, config))


def evaluate_server(run: Path, config: RunConfig, *, engine: str, url: str, timeout_s: float) -> dict[str, Any]:
    """Send the prompts of a run to a running server; what was found joins summary.json under `served`."""
    if engine not in get_args(evaluation.Engine):
        raise ConfigError(f"--engine is {engine!r}; known are {', '.join(get_args(evaluation.Engine))}")
    prompts = _prompts_of(run, config)
    with Progress(f"asking {url}") as progress:
        found = {
            name: dataclasses.asdict(
                evaluation.measure_server(
                    engine,  # type: ignore[arg-type]
                    url,
                    asked,
                    max_new_tokens=config.eval.max_new_tokens,
                    sampling=rule_of(config.eval).sampling,
                    timeout_s=timeout_s,
                    progress=lambda text, name=name: progress.show(f"{name}, {text}"),  # type: ignore[misc]
                )
            )
            for name, asked in prompts.items()
        }
    summary = read_json(run / "summary.json")
    served = {"decoding": _decoding(config.eval), "max_new_tokens": config.eval.max_new_tokens, "sets": found}
    summary["served"] = {**summary.get("served", {}), engine: served}
    write_json(run / "summary.json", summary)
    return served


def rule_of(settings: EvalConfig) -> evaluation.Rule:
    """How the settings say that tokens are drafted, verified and chosen."""
    sampling = Sampling(settings.temperature, settings.top_k, settings.top_p)
    return evaluation.Rule(sampling, settings.draft, settings.verify)


def decoding_of(config: RunConfig) -> evaluation.Decoding:
    """How prompts are decoded, during training and after it."""
    return evaluation.Decoding(config.eval.max_new_tokens, config.eval.batch_size, rule_of(config.eval), config.seed)


def _prompts_of(run: Path, config: RunConfig) -> PromptSets:
    prompts = prompt_sets(config, run)
    if not prompts:
        skipped = ", ".join(skipped_sets(config, prompts))
        why = f"the packages of {skipped} are missing" if skipped else "every number of prompts is 0"
        raise DataError(f"there is no prompt to measure on: {why}; set eval.num_prompts, or eval.prompts to a file")
    return prompts


def _decoding(settings: EvalConfig) -> str:
    """How answers were chosen, in words."""
    parts = ["greedy"]
    if settings.temperature > 0:
        parts = [f"sampled at temperature {settings.temperature:g}"]
        parts += [f"top-k {settings.top_k}"] if settings.top_k else []
        parts += [f"top-p {settings.top_p:g}"] if settings.top_p < 1 else []
        parts += ["drafts sampled"] if settings.draft == "sampled" else []
    parts += [f"{settings.verify} tokens verified at once"] if settings.verify else []
    return ", ".join(parts)


def _measure_sets(run: Path, config: RunConfig, drafter: Drafter, prompts: PromptSets) -> dict[str, Any]:
    target = load_target(config.target, dtype=config.eval.dtype, device=resolve_device(config.device))
    kept: Kept = {}
    with Progress("decoding with the drafter") as progress:
        measured = evaluation.measure_sets(
            drafter.to(target.device, target.dtype),
            target,
            prompts,
            decoding_of(config),
            progress.show,
            functools.partial(keep_some, kept),
        )
    write_examples(run, load_tokenizer(config.target), kept)
    return {**measured, "eval_dtype": config.eval.dtype, "decoding": _decoding(config.eval)}


def _measure_speed(
    config: RunConfig, drafter: Drafter, name: str, prompts: list[list[int]], by_slot: list[float]
) -> dict[str, Any]:
    """tokens/s on the first prompts of a set, and what its acceptance predicts from costs measured right after."""
    target = load_target(config.target, dtype=config.eval.speed_dtype, device=resolve_device(config.device))
    drafter = drafter.to(target.device, target.dtype)
    timed = prompts[: config.eval.num_timed]
    with Progress(f"timing {len(timed)} prompts with and without the drafter"):
        speed = evaluation.measure_speed(
            drafter,
            target,
            timed,
            max_new_tokens=config.eval.max_new_tokens,
            rule=rule_of(config.eval),
            seeds=[evaluation.prompt_seed(config.seed, name, index) for index in range(len(timed))],
        )
    context = sum(map(len, prompts)) // len(prompts) + config.eval.max_new_tokens // 2
    costs = _measure_costs(config, drafter, target, context, by_slot)
    measured = {**dataclasses.asdict(speed), "speedup": speed.speedup, "speed_dtype": config.eval.speed_dtype}
    if costs["by_batch_size"]:
        measured |= {"costs": costs, "predicted_speedup": costs["by_batch_size"][0]["used"]["speedup"]}
    return measured


def _measure_costs(
    config: RunConfig, drafter: Drafter, target: Target, context: int, by_slot: list[float]
) -> dict[str, Any]:
    context = min(context, target.max_length - drafter.shape.block_size)
    rows = []
    for batch_size in config.eval.cost_batch_sizes:
        with Progress(f"measuring what forwards over {batch_size} rows cost"):
            costs = evaluation.measure_costs(drafter, target, batch_size=batch_size, context=context)
        used = min(config.eval.verify or drafter.shape.block_size, drafter.shape.block_size)
        predictions = evaluation.predict(costs, by_slot[: used - 1])
        rows.append(
            {
                **dataclasses.asdict(costs),
                "used": dataclasses.asdict(min(predictions, key=lambda p: abs(p.verify - used))),
                "best": dataclasses.asdict(evaluation.best(predictions)),
                "speedup_if_verifying_were_free": evaluation.if_verifying_were_free(costs, predictions),
            }
        )
    device = describe_environment()["processor"] if target.device.type == "cpu" else _name_of(target.device)
    return {"device": device, "dtype": config.eval.speed_dtype, "context": context, "by_batch_size": rows}


def _name_of(device: torch.device) -> str:
    return torch.cuda.get_device_name(device)
