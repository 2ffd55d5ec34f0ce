"""How many tokens a target forward yields, counted two ways, and how far into the block drafts are accepted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from draftsmith.evaluation.speculate import Decoded


@dataclass(frozen=True)
class Acceptance:
    """length: committed tokens per verification, the target's own token included, pooled over all verifications.

    length_by_response: the mean over answers of their own length; short easy answers weigh more in it. by_slot: share
    of verifications in which slot 1, 2, ... was accepted.
    """

    length: float
    length_by_response: float
    by_slot: tuple[float, ...]
    num_prompts: int
    num_verifications: int


def acceptance_of(answers: Sequence[Decoded], *, block_size: int) -> Acceptance:
    """Pool the verifications of answers. An answer that ended with its first token has none and does not count."""
    committed = [count for answer in answers for count in answer.committed]
    responses = [sum(a.committed) / len(a.committed) for a in answers if a.committed]
    total = max(len(committed), 1)
    return Acceptance(
        length=sum(committed) / total,
        length_by_response=sum(responses) / max(len(responses), 1),
        by_slot=tuple(sum(count > slot for count in committed) / total for slot in range(1, block_size)),
        num_prompts=len(answers),
        num_verifications=len(committed),
    )
