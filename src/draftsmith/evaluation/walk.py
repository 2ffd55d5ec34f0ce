"""The acceptance that a drafter would have reached on a text that is already there, whoever wrote it.

An engine's arithmetic differs from ours in the last digits, so its greedy text soon is another one than ours and
acceptance on the two says nothing about each other. On the engine's own tokens it does: hidden states are recomputed
for them, the drafter is asked at every place in one forward, and the walk visits the places where its own acceptance
leads, as a decoder would.

Legend: S tokens of the whole text, N places, K slots, T slots of several blocks, H hidden size.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from draftsmith.drafter import Drafter, dense_mask
from draftsmith.evaluation.speculate import check_fit
from draftsmith.target import Target

PLACES_AT_ONCE = 32  # bounds the logits: places x slots x vocabulary


@torch.no_grad()
def walk(drafter: Drafter, target: Target, prompt: Sequence[int], answer: Sequence[int]) -> list[int]:
    """What each verification commits on the way through `answer`, the last one cut at its end."""
    check_fit(drafter, target)
    leading = leading_matches(drafter, target, prompt, answer)
    committed: list[int] = []
    place = 0
    while place < len(answer) - 1:
        committed.append(min(leading[place] + 1, len(answer) - 1 - place))
        place += committed[-1]
    return committed


@torch.no_grad()
def leading_matches(drafter: Drafter, target: Target, prompt: Sequence[int], answer: Sequence[int]) -> list[int]:
    """For each place of the answer: how many of the tokens drafted after it are those that follow."""
    shape = drafter.shape
    text_S = torch.tensor([*prompt, *answer], device=target.device)
    all_positions = torch.arange(len(text_S), device=target.device)
    context = drafter.context(target.features(text_S[None]), all_positions[None])
    counts: list[int] = []
    for places_N in torch.split(all_positions[len(prompt) :], PLACES_AT_ONCE):
        positions_NK = places_N[:, None] + torch.arange(shape.block_size, device=target.device)
        block_NK = torch.full_like(positions_NK, shape.mask_token_id)
        block_NK[:, 0] = text_S[places_N]
        keep_1N = torch.ones(1, len(places_N), dtype=torch.bool, device=target.device)
        mask = dense_mask(places_N[None], keep_1N, num_context=len(text_S), block_size=shape.block_size)
        embedding = target.embedding(block_NK.flatten()[None]).to(drafter.fc.weight.dtype)
        states_NKH = drafter(embedding, positions_NK.flatten()[None], context, mask)[0].unflatten(0, block_NK.shape)
        states_TH = states_NKH[:, 1:].to(target.dtype).flatten(0, 1)
        drafts_NK = target.head(states_TH).argmax(-1).unflatten(0, (len(places_N), -1))
        known_NK = positions_NK[:, 1:] < len(text_S)
        agrees_NK = known_NK & (drafts_NK == text_S[positions_NK[:, 1:].clamp(max=len(text_S) - 1)])
        counts += agrees_NK.long().cumprod(-1).sum(-1).tolist()
    return counts
