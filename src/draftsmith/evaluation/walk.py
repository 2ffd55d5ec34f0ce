"""The acceptance that a drafter would have reached on a text that is already there, whoever wrote it.

An engine's arithmetic differs from ours in the last digits, so its greedy text soon is another one than ours and
acceptance on the two says nothing about each other. On the engine's own tokens it does: hidden states are recomputed
for them, the drafter is asked at every place in one forward, and the walk visits the places where its own acceptance
leads, as a decoder would.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from draftsmith.drafter import Drafter
from draftsmith.evaluation.during_training import PLACES_AT_ONCE, agrees_at
from draftsmith.evaluation.speculate import check_fit
from draftsmith.target import Target


@torch.no_grad()
def walk(drafter: Drafter, target: Target, prompt: Sequence[int], answer: Sequence[int]) -> list[int]:
    """What each verification commits on the way through `answer`, the last one cut at its end."""
    check_fit(drafter, target)
    leading = _leading(drafter, target, prompt, answer)
    committed: list[int] = []
    place = 0
    while place < len(answer) - 1:
        committed.append(min(leading[place] + 1, len(answer) - 1 - place))
        place += committed[-1]
    return committed


def _leading(drafter: Drafter, target: Target, prompt: Sequence[int], answer: Sequence[int]) -> list[int]:
    """For each place of the answer: how many of the tokens drafted after it are those that follow."""
    text_1S = torch.tensor([[*prompt, *answer]], device=target.device)
    hidden_1SX = target.features(text_1S)
    counts: list[int] = []
    places = torch.arange(len(prompt), text_1S.shape[1], device=text_1S.device)
    for places_N in torch.split(places, PLACES_AT_ONCE):
        agrees_NK = agrees_at(drafter, target, hidden_1SX, text_1S, places_N)
        counts += agrees_NK.long().cumprod(-1).sum(-1).tolist()
    return counts
