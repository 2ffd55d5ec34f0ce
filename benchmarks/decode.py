"""Decoding, one prompt at a time: ours beside Transformers' generate, with and without a drafter, greedy and sampled.

    python benchmarks/decode.py RUN --out decode.json [--num-prompts 4] [--max-new-tokens 48]

RUN is a finished run directory. Every prompt is decoded in all ways in turn, so that a drifting clock hits all alike.
Prints a table and writes JSON with hardware and commit.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from draftsmith import evaluation
from draftsmith.config import load_config
from draftsmith.drafter import Drafter
from draftsmith.evaluation import Rule, acceptance_of, speculate
from draftsmith.evaluation.cost import timed
from draftsmith.export import read_drafter
from draftsmith.observe import describe_environment
from draftsmith.run.opening import prompt_sets, set_up
from draftsmith.target import Sampling, Target, generate, load_target

REPOSITORY = Path(__file__).resolve().parents[1]
WARM = Sampling(0.8, top_p=0.95)
Way = Callable[[list[int], int], tuple[int, list[int]]]
"""Decodes one prompt with a seed: number of tokens, and what each verification committed."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
    parser.add_argument("--num-prompts", type=int, default=4)
    parser.add_argument("--max-new-tokens", type=int, default=48)
    arguments = parser.parse_args()
    config = set_up(load_config(arguments.run / "config.toml"))
    name, prompts = next(iter(prompt_sets(config, arguments.run).items()))
    target = load_target(config.target, dtype=config.eval.speed_dtype)
    drafter = read_drafter(arguments.run / "drafter").to(target.device, target.dtype)
    ways = ways_of(drafter, target, arguments.max_new_tokens)
    found = measure(ways, prompts[: arguments.num_prompts], block_size=drafter.shape.block_size)
    costs = evaluation.measure_costs(drafter, target, batch_size=1, context=sum(map(len, prompts)) // len(prompts))
    by_slot = found["speculative, greedy"]["by_slot"]
    predictions = [dataclasses.asdict(p) for p in evaluation.predict(costs, by_slot)]
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=REPOSITORY, capture_output=True, text=True)
    report = {
        "commit": commit.stdout.strip(),
        "environment": describe_environment(),
        "prompts": f"{arguments.num_prompts} of {name}, {arguments.max_new_tokens} tokens, {config.eval.speed_dtype}",
        "ways": found,
        "costs": dataclasses.asdict(costs),
        "predictions": predictions,
    }
    arguments.out.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    print(table(report))


def ways_of(drafter: Drafter, target: Target, limit: int) -> dict[str, Way]:
    ways: dict[str, Way] = {
        "generate of Transformers, greedy": partial(hugging_face, target, limit),
        "plain, greedy": partial(plain, target, limit, Sampling()),
        "plain, sampled": partial(plain, target, limit, WARM),
    }
    rules = {"greedy": Rule(), "sampled": Rule(WARM), "sampled, drafts sampled": Rule(WARM, "sampled")}
    rules |= {f"greedy, {n} tokens verified": Rule(verify=n) for n in (2, 4) if n < drafter.shape.block_size}
    return ways | {
        f"speculative, {name}": partial(drafted, drafter, target, limit, rule) for name, rule in rules.items()
    }


def hugging_face(target: Target, limit: int, prompt: list[int], _seed: int) -> tuple[int, list[int]]:
    """With its own cache, as a user would call it."""
    ids = torch.tensor([prompt], device=target.device)
    mask = torch.ones_like(ids)
    with torch.no_grad():
        found = target.model.generate(ids, attention_mask=mask, max_new_tokens=limit, do_sample=False)
    return found.shape[1] - len(prompt), []


def plain(target: Target, limit: int, sampling: Sampling, prompt: list[int], seed: int) -> tuple[int, list[int]]:
    (answer,) = generate(target, [prompt], max_new_tokens=limit, sampling=sampling, seeds=[seed])
    return len(answer), []


def drafted(
    drafter: Drafter, target: Target, limit: int, rule: Rule, prompt: list[int], seed: int
) -> tuple[int, list[int]]:
    (answer,) = speculate(drafter, target, [prompt], max_new_tokens=limit, rule=rule, seeds=[seed])
    return len(answer.tokens), answer.committed


def measure(ways: dict[str, Way], prompts: list[list[int]], *, block_size: int) -> dict[str, Any]:
    found: dict[str, dict[str, Any]] = {name: {"tokens": 0, "seconds": 0.0, "answers": []} for name in ways}
    for turn, prompt in enumerate([prompts[0], *prompts]):
        for name, way in ways.items():
            (num_tokens, committed), seconds = timed(partial(way, prompt, turn))
            if turn > 0:  # the first prompt runs once more before, uncounted
                found[name]["tokens"] += num_tokens
                found[name]["seconds"] += seconds
                found[name]["answers"].append(evaluation.Decoded([], committed))
    for result in found.values():
        accepted = acceptance_of(result.pop("answers"), block_size=block_size)
        result["tokens_per_s"] = result["tokens"] / result["seconds"]
        result["acceptance_length"] = accepted.length or None
        result["by_slot"] = accepted.by_slot
    return found


def table(report: dict[str, Any]) -> str:
    base = report["ways"]["plain, greedy"]["tokens_per_s"]
    lines = ["| way | tokens/s | of plain greedy | tokens per forward |", "|---|---|---|---|"]
    for name, found in report["ways"].items():
        length = f"{found['acceptance_length']:.2f}" if found["acceptance_length"] else ""
        lines.append(f"| {name} | {found['tokens_per_s']:.1f} | {found['tokens_per_s'] / base:.2f} | {length} |")
    costs = report["costs"]
    lines += ["", "| tokens at once | target, ms | drafter, ms | break-even | predicted |", "|---|---|---|---|---|"]
    lines.append(f"| 1 | {1e3 * costs['target_s'][1]:.1f} | | | |")
    for found in report["predictions"]:
        n = found["verify"]
        milliseconds = f"{1e3 * costs['target_s'][n]:.1f} | {1e3 * costs['draft_s'][n]:.1f}"
        lines.append(f"| {n} | {milliseconds} | {found['break_even']:.2f} | {found['speedup']:.2f}x |")
    machine = report["environment"]
    lines += ["", f"{report['prompts']}; {machine['processor']}, {machine['cores']} cores; commit {report['commit']}"]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
