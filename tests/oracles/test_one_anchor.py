"""Training and decoding are one computation: a block trained at a place gives what the decoder computed there."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from draftsmith.drafter import Drafter
from draftsmith.evaluation import speculate
from draftsmith.target import Target
from helpers import block_states, draw
from tolerances import SAME_NETWORK


@pytest.mark.parametrize("which", range(5))
def test_the_training_forward_of_one_anchor_gives_the_logits_of_the_decoder(
    which: int, target: Target, trained: Drafter, prompts: list[list[int]]
) -> None:
    prompt, seen = prompts[which], []

    def record(_module: Any, _inputs: Any, states: torch.Tensor) -> None:
        seen.append(states)

    handle = trained.register_forward_hook(record)
    try:
        (answer,) = speculate(trained, target, [prompt], max_new_tokens=24)
    finally:
        handle.remove()
    text = torch.tensor([[*prompt, *answer.tokens]])
    hidden = target.features(text)
    anchor = len(prompt)
    compared = 0
    for states, committed in zip(seen, answer.committed, strict=True):
        if anchor + 1 >= text.shape[1]:
            break
        loss_mask = torch.zeros(1, text.shape[1], dtype=torch.bool)
        loss_mask[0, anchor : anchor + 2] = True  # exactly one anchor is valid
        blocks = draw(text, loss_mask)
        assert blocks.anchors_BN.tolist() == [[anchor]]
        ours = target.head(block_states(trained, target, hidden, blocks)[0])
        torch.testing.assert_close(ours, target.head(states), **SAME_NETWORK)
        anchor += committed
        compared += 1
    assert compared >= 1
