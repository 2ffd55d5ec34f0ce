"""Whole sets of prompts: acceptance of each, and whether every answer is what the target alone would have given."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from draftsmith.drafter import Drafter
from draftsmith.evaluation.acceptance import acceptance_of
from draftsmith.evaluation.lossless import num_own
from draftsmith.evaluation.rule import Rule
from draftsmith.evaluation.speculate import ARGMAX, Decoded, speculate
from draftsmith.keyed import keyed_generator
from draftsmith.target import Target

Prompts = Sequence[Sequence[int]]


def measure_sets(
    drafter: Drafter,
    target: Target,
    sets: Mapping[str, Prompts],
    *,
    max_new_tokens: int,
    batch_size: int,
    progress: Callable[[str], None],
    rule: Rule = ARGMAX,
    seed: int = 0,
) -> dict[str, Any]:
    """What summary.json says about acceptance. The first set gives the headline; all count for equality.

    With sampled drafts single answers are not the target's own, only their distribution is: `lossless` is then None.
    """
    measured: dict[str, Any] = {}
    num_equal = num_checked = 0
    for name, prompts in sets.items():
        seeds = [prompt_seed(seed, name, index) for index in range(len(prompts))]
        answers = [Decoded()] * len(prompts)
        by_length = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))  # rows of one length waste no prefill
        for start in range(0, len(by_length), batch_size):
            rows = by_length[start : start + batch_size]
            batch, keys = [prompts[i] for i in rows], [seeds[i] for i in rows]
            decoded = speculate(drafter, target, batch, max_new_tokens=max_new_tokens, rule=rule, seeds=keys)
            if not rule.samples_drafts:
                tokens = [answer.tokens for answer in decoded]
                num_equal += num_own(target, batch, tokens, sampling=rule.sampling, seeds=keys)
                num_checked += len(rows)
            for i, answer in zip(rows, decoded, strict=True):
                answers[i] = answer
            progress(f"{name}, {start + len(rows)} of {len(prompts)} prompts")
        lengths = [len(prompt) for prompt in prompts]
        found = acceptance_of(answers, block_size=drafter.shape.block_size, prompt_lengths=lengths)
        measured[name] = dataclasses.asdict(found)
    headline_set, headline = next(iter(measured.items()))
    return {
        "headline_set": headline_set,
        "acceptance_length": headline["length"],
        "acceptance_by_slot": headline["by_slot"],
        "lossless": num_equal == num_checked if num_checked else None,
        "num_lossless": num_equal,
        "num_lossless_checked": num_checked,
        "sets": measured,
    }


def prompt_seed(seed: int, set_name: str, index: int) -> int:
    """The seed of a prompt's answer: of its place in its set, so that batches and other sets change nothing."""
    return int(keyed_generator(seed, "eval", set_name, index).integers(2**62))
