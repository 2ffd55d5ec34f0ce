"""Acceptance measured while training, as it will be served, and what teacher forcing would claim about the same text.

Free-running is the real thing: prompts in the served format, the real decoder, its own rule. Teacher-forced asks the
drafter at every place of the very answers that came out: drafts count up to the first that is wrong, plus one for the
target's own token. The two differ only in which places are asked. If the gap is large, drafting is good where the
decoder rarely stands; if teacher-forced is high and serving elsewhere is low, features or positions differ there.

Legend: S tokens of a text, N places, K slots, X width of the target's hidden states.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from draftsmith.drafter import Drafter, dense_mask
from draftsmith.evaluation.acceptance import acceptance_of
from draftsmith.evaluation.measure import Decoding, Prompts, answer_all
from draftsmith.target import Target

PLACES_AT_ONCE = 32  # bounds the logits: places x slots x vocabulary


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


@torch.no_grad()
def forced_counts(
    drafter: Drafter, target: Target, prompt: Sequence[int], answer: Sequence[int], *, num_verified: int
) -> list[int]:
    """What a verification of `num_verified` tokens would commit at each place of `answer` whose whole block is known.

    Blocks that reach beyond the text are known only if the text ends with the end token, where they end as well.
    """
    ended = answer[-1] in target.eos_token_ids
    last = len(prompt) + len(answer) - 1  # the newest token of a block stands before this one
    stop = last if ended else last - num_verified + 2
    if stop <= len(prompt):
        return []
    places = torch.arange(len(prompt), stop, device=target.device)
    text_1S = torch.tensor([[*prompt, *answer]], device=target.device)
    hidden_1SX = target.features(text_1S)
    counts: list[int] = []
    for places_N in torch.split(places, PLACES_AT_ONCE):
        agrees_NK = agrees_at(drafter, target, hidden_1SX, text_1S, places_N)[:, : num_verified - 1]
        kept_N = agrees_NK.long().cumprod(-1).sum(-1)
        # Up to the end token, which nothing of the target's own follows.
        counts += (torch.minimum(kept_N + 1, last - places_N) if ended else kept_N + 1).tolist()
    return counts


def agrees_at(
    drafter: Drafter, target: Target, hidden_1SX: torch.Tensor, text_1S: torch.Tensor, places_N: torch.Tensor
) -> torch.Tensor:
    """Whether the drafts [N, K-1] of a block at each place are the text's own tokens; false beyond the text."""
    shape, num_tokens = drafter.shape, text_1S.shape[1]
    positions_NK = places_N[:, None] + torch.arange(shape.block_size, device=places_N.device)
    block_NK = torch.full_like(positions_NK, shape.mask_token_id)
    block_NK[:, 0] = text_1S[0, places_N]
    keep_1N = torch.ones(1, len(places_N), dtype=torch.bool, device=places_N.device)
    mask = dense_mask(places_N[None], keep_1N, num_context=num_tokens, block_size=shape.block_size)
    context = drafter.context(hidden_1SX, torch.arange(num_tokens, device=places_N.device)[None])
    embedding = target.embedding(block_NK.flatten()[None]).to(drafter.fc.weight.dtype)
    states_NKH = drafter(embedding, positions_NK.flatten()[None], context, mask)[0].unflatten(0, block_NK.shape)
    states_TH = states_NKH[:, 1:].to(target.dtype).flatten(0, 1)
    drafts_NK = target.head(states_TH).argmax(-1).unflatten(0, (len(places_N), -1))
    known_NK = positions_NK[:, 1:] < num_tokens
    return known_NK & (drafts_NK == text_1S[0, positions_NK[:, 1:].clamp(max=num_tokens - 1)])  # type: ignore[no-any-return]
