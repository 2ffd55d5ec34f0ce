"""Whole sets of prompts: acceptance of each, and whether every answer is what the target alone would have given."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from draftsmith.drafter import Drafter
from draftsmith.evaluation.acceptance import acceptance_of
from draftsmith.evaluation.lossless import num_own
from draftsmith.evaluation.rule import Rule
from draftsmith.evaluation.speculate import ARGMAX, Decoded, speculate
from draftsmith.keyed import keyed_generator
from draftsmith.target import Target

Prompts = Sequence[Sequence[int]]


@dataclass(frozen=True)
class Decoding:
    """How prompts are decoded: how long answers may be, how many at a time, by which rule, from which seed."""

    max_new_tokens: int
    batch_size: int = 16
    rule: Rule = ARGMAX
    seed: int = 0


@dataclass(frozen=True)
class Answered:
    """Answers in the order of their prompts, how many were checked against the target alone, and how many are equal.

    With sampled drafts none is checked: single answers are then not the target's own, only their distribution is.
    """

    answers: list[Decoded]
    num_own: int
    num_checked: int


def measure_sets(
    drafter: Drafter,
    target: Target,
    sets: Mapping[str, Prompts],
    decoding: Decoding,
    progress: Callable[[str], None] = lambda _: None,
    keep: Callable[[str, Prompts, list[Decoded]], None] = lambda _name, _prompts, _answers: None,
) -> dict[str, Any]:
    """What summary.json says about acceptance. The first set gives the headline; all count for equality.

    `lossless` is None if no answer could be checked (see Answered). `keep` is told every set with its answers.
    """
    measured: dict[str, Any] = {}
    num_equal = num_checked = 0
    for name, prompts in sets.items():
        found = answer_all(drafter, target, name, prompts, decoding, progress)
        keep(name, prompts, found.answers)
        num_equal, num_checked = num_equal + found.num_own, num_checked + found.num_checked
        lengths = [len(prompt) for prompt in prompts]
        accepted = acceptance_of(found.answers, block_size=drafter.shape.block_size, prompt_lengths=lengths)
        measured[name] = dataclasses.asdict(accepted)
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


def answer_all(
    drafter: Drafter,
    target: Target,
    name: str,
    prompts: Prompts,
    decoding: Decoding,
    progress: Callable[[str], None] = lambda _: None,
) -> Answered:
    """Decode the prompts of a set in batches of similar length, and prove each answer."""
    seeds = [prompt_seed(decoding.seed, name, index) for index in range(len(prompts))]
    answers = [Decoded()] * len(prompts)
    num_equal = num_checked = 0
    by_length = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))  # rows of one length waste no prefill
    for start in range(0, len(by_length), decoding.batch_size):
        rows = by_length[start : start + decoding.batch_size]
        batch, keys, rule = [prompts[i] for i in rows], [seeds[i] for i in rows], decoding.rule
        decoded = speculate(drafter, target, batch, max_new_tokens=decoding.max_new_tokens, rule=rule, seeds=keys)
        if not rule.samples_drafts:
            tokens = [answer.tokens for answer in decoded]
            num_equal += num_own(target, batch, tokens, sampling=rule.sampling, seeds=keys)
            num_checked += len(rows)
        for i, answer in zip(rows, decoded, strict=True):
            answers[i] = answer
        progress(f"{name}, {start + len(rows)} of {len(prompts)} prompts")
    return Answered(answers, num_equal, num_checked)


def prompt_seed(seed: int, set_name: str, index: int) -> int:
    """The seed of a prompt's answer: of its place in its set, so that batches and other sets change nothing."""
    return int(keyed_generator(seed, "eval", set_name, index).integers(2**62))
