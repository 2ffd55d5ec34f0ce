"""Acceptance measured while training, as it will be served, and what teacher forcing would claim about the same text.

Free-running is the real thing: prompts in the served format, the real decoder, its own rule. Teacher-forced asks the
drafter at every place of the very answers that came out: drafts count up to the first that is wrong, plus one for the
target's own token. The two differ only in which places are asked. If the gap is large, drafting is good where the
decoder rarely stands; if teacher-forced is high and serving elsewhere is low, features or positions differ there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from draftsmith.drafter import Drafter
from draftsmith.evaluation.acceptance import acceptance_of
from draftsmith.evaluation.measure import Decoding, Prompts, answer_all
from draftsmith.evaluation.walk import leading_matches
from draftsmith.target import Target


@dataclass(frozen=True)
class ServedAcceptance:
    """Pooled acceptance lengths on the same answers; `gap` is teacher-forced minus free-running.

    teacher_forced and gap are None if no answer was long enough for a whole block.
    """

    free_running: float
    teacher_forced: float | None
    gap: float | None
    by_slot: tuple[float, ...]
    lossless: bool | None
    num_prompts: int
    num_verifications: int


def measure_during_training(
    drafter: Drafter,
    target: Target,
    prompts: Prompts,
    decoding: Decoding,
    *,
    name: str = "holdout",
    progress: Callable[[str], None] = lambda _: None,
) -> ServedAcceptance:
    """Answer the prompts of a set with the drafter as it is now, then ask it again at every place of the answers."""
    found = answer_all(drafter, target, name, prompts, decoding, progress)
    accepted = acceptance_of(found.answers, block_size=drafter.shape.block_size)
    width = min(decoding.rule.verify or drafter.shape.block_size, drafter.shape.block_size)
    counts = [
        count
        for prompt, answer in zip(prompts, found.answers, strict=True)
        for count in forced_counts(drafter, target, prompt, answer.tokens, num_verified=width)
    ]
    forced = sum(counts) / len(counts) if counts else None
    return ServedAcceptance(
        free_running=accepted.length,
        teacher_forced=forced,
        gap=None if forced is None else forced - accepted.length,
        by_slot=accepted.by_slot,
        lossless=found.num_own == found.num_checked if found.num_checked else None,
        num_prompts=len(prompts),
        num_verifications=accepted.num_verifications,
    )


def forced_counts(
    drafter: Drafter, target: Target, prompt: Sequence[int], answer: Sequence[int], *, num_verified: int
) -> list[int]:
    """What a verification of `num_verified` tokens would commit at each place of `answer` whose whole block is known.

    Blocks that reach beyond the text are known only if the text ends with the end token, where they end as well.
    """
    leading = leading_matches(drafter, target, prompt, answer)
    last = len(answer) - 1
    ended = answer[-1] in target.eos_token_ids
    counts = [min(kept, num_verified - 1) + 1 for kept in leading]
    if ended:  # nothing of the target's own follows the end token
        return [min(count, last - place) for place, count in enumerate(counts[:last])]
    return counts[: max(0, last - num_verified + 2)]
