"""The acceptance that a drafter would have reached on a text that is already there, whoever wrote it.

An engine's arithmetic differs from ours in the last digits, so its greedy text soon is another one than ours and
acceptance on the two says nothing about each other. On the engine's own tokens it does: hidden states are recomputed
for them, the drafter is asked at every place in one forward, and the walk visits the places where its own acceptance
leads, as a decoder would.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from draftsmith.drafter import Drafter, dense_mask
from draftsmith.evaluation.speculate import check_fit
from draftsmith.target import Target

PLACES_AT_ONCE = 32  # bounds the logits: places x slots x vocabulary


@torch.no_grad()
def walk(
    drafter: Drafter, target: Target, prompt: Sequence[int], answer: Sequence[int], *, num_draft: int | None = None
) -> list[int]:
    """What each verification commits on the way through `answer`, the last one cut at its end.

    num_draft: tokens drafted per verification; by default the block size minus one.
    """
    check_fit(drafter, target)
    width = num_draft or drafter.shape.block_size - 1
    leading = _leading(drafter, target, prompt, answer, width + 1)
    committed, place = [], 0
    while place < len(answer) - 1:
        committed.append(min(leading[place] + 1, len(answer) - 1 - place))
        place += committed[-1]
    return committed


def _leading(
    drafter: Drafter, target: Target, prompt: Sequence[int], answer: Sequence[int], block_size: int
) -> list[int]:
    """For each place of the answer: how many of the tokens drafted after it are those that follow."""
    text = torch.tensor([[*prompt, *answer]], device=target.device)
    hidden = target.features(text)
    context = drafter.context(hidden, torch.arange(text.shape[1], device=text.device)[None])
    counts: list[int] = []
    places = torch.arange(len(prompt), text.shape[1], device=text.device)
    for places_N in torch.split(places, PLACES_AT_ONCE):
        positions_NK = places_N[:, None] + torch.arange(block_size, device=text.device)
        block_NK = torch.full_like(positions_NK, drafter.shape.mask_token_id)
        block_NK[:, 0] = text[0, places_N]
        keep = torch.ones(1, len(places_N), dtype=torch.bool, device=text.device)
        mask = dense_mask(places_N[None], keep, num_context=text.shape[1], block_size=block_size)
        embedding = target.embedding(block_NK.flatten()[None]).to(drafter.fc.weight.dtype)
        states = drafter(embedding, positions_NK.flatten()[None], context, mask)[0].unflatten(0, block_NK.shape)
        drafts_NK = (
            target.head(states[:, 1:].to(target.dtype).flatten(0, 1)).argmax(-1).unflatten(0, (len(places_N), -1))
        )
        known = positions_NK[:, 1:] < text.shape[1]
        agrees = known & (drafts_NK == text[0, positions_NK[:, 1:].clamp(max=text.shape[1] - 1)])
        counts += agrees.long().cumprod(-1).sum(-1).tolist()
    return counts
