"""Tokens per second with and without the drafter, measured in one process on the same prompts, turn by turn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from draftsmith.drafter import Drafter
from draftsmith.evaluation.cost import timed
from draftsmith.evaluation.rule import Rule
from draftsmith.evaluation.speculate import ARGMAX, speculate
from draftsmith.target import Target, generate


@dataclass(frozen=True)
class Speed:
    """tokens/s of plain and speculative decoding, one prompt at a time, the prompt's forward included.

    timed_acceptance_length: tokens per verification of these same answers, pooled.
    """

    baseline_tokens_per_s: float
    speculative_tokens_per_s: float
    timed_acceptance_length: float
    num_timed_prompts: int

    @property
    def speedup(self) -> float:
        return self.speculative_tokens_per_s / self.baseline_tokens_per_s


def measure_speed(
    drafter: Drafter,
    target: Target,
    prompts: Sequence[Sequence[int]],
    *,
    max_new_tokens: int,
    rule: Rule = ARGMAX,
    seeds: Sequence[int] = (),
) -> Speed:
    """Alternate plain and speculative decoding over `prompts`; the first prompt runs once more before, uncounted."""
    plain: list[tuple[int, float]] = []
    drafted: list[tuple[int, float]] = []
    committed: list[int] = []
    for turn, index in enumerate([0, *range(len(prompts))]):
        batch, keys = [prompts[index]], seeds[index : index + 1]
        alone = partial(generate, target, batch, max_new_tokens=max_new_tokens, sampling=rule.sampling, seeds=keys)
        helped = partial(speculate, drafter, target, batch, max_new_tokens=max_new_tokens, rule=rule, seeds=keys)
        answers, seconds = timed(alone)
        decoded, drafted_seconds = timed(helped)
        if turn > 0:
            plain.append((len(answers[0]), seconds))
            drafted.append((len(decoded[0].tokens), drafted_seconds))
            committed += decoded[0].committed
    length = sum(committed) / max(len(committed), 1)
    return Speed(_rate(plain), _rate(drafted), length, len(prompts))


def _rate(runs: Sequence[tuple[int, float]]) -> float:
    return sum(tokens for tokens, _ in runs) / sum(seconds for _, seconds in runs)
