"""Whole sets of prompts: acceptance of each, and whether every answer is the target's own greedy one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from draftsmith.drafter import Drafter
from draftsmith.evaluation.acceptance import acceptance_of
from draftsmith.evaluation.lossless import num_greedy
from draftsmith.evaluation.speculate import speculate
from draftsmith.target import Target


def measure_sets(
    drafter: Drafter,
    target: Target,
    sets: Mapping[str, Sequence[Sequence[int]]],
    *,
    max_new_tokens: int,
    batch_size: int,
    progress: Callable[[str], None],
) -> dict[str, Any]:
    """What summary.json says about acceptance. The first set gives the headline; all count for equality."""
    measured: dict[str, Any] = {}
    num_equal = num_answers = 0
    for name, prompts in sets.items():
        answers = []
        ordered = sorted(prompts, key=len)  # rows of one length waste no prefill
        for start in range(0, len(ordered), batch_size):
            batch = ordered[start : start + batch_size]
            decoded = speculate(drafter, target, batch, max_new_tokens=max_new_tokens)
            num_equal += num_greedy(target, batch, [answer.tokens for answer in decoded])
            answers += decoded
            progress(f"{name}, {len(answers)} of {len(prompts)} prompts")
        num_answers += len(answers)
        measured[name] = dataclasses.asdict(acceptance_of(answers, block_size=drafter.shape.block_size))
    headline_set, headline = next(iter(measured.items()))
    return {
        "headline_set": headline_set,
        "acceptance_length": headline["length"],
        "acceptance_by_slot": headline["by_slot"],
        "lossless": num_equal == num_answers,
        "num_lossless": num_equal,
        "num_lossless_checked": num_answers,
        "sets": measured,
    }
