"""What a block may not see cannot change it: hidden states at or after its anchor, other blocks, padding."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from draftsmith.drafter import Blocks, Drafter
from draftsmith.target import Target
from helpers import block_states, draw, new_drafter, random_text
from tolerances import SAME_NETWORK

LENGTH = 40


@pytest.fixture(scope="module")
def drafter(target: Target) -> Drafter:
    return new_drafter(target, seed=3).requires_grad_(False)


def logits(target: Target, states: torch.Tensor) -> torch.Tensor:
    return target.head(states)


def two_rows() -> tuple[torch.Tensor, Blocks]:
    """Two rows of text with four overlapping blocks each."""
    input_ids = random_text(0, 2, LENGTH)
    loss_mask = torch.zeros(2, LENGTH, dtype=torch.bool)
    loss_mask[:, 10:30] = True
    return input_ids, draw(input_ids, loss_mask)


def test_hidden_states_at_or_after_the_anchor_change_no_logit_of_the_block(target: Target, drafter: Drafter) -> None:
    input_ids, blocks = two_rows()
    hidden = target.features(input_ids)
    before = logits(target, block_states(drafter, target, hidden, blocks))
    for number in range(blocks.anchors_BN.shape[1]):
        changed = hidden.clone()
        for row, anchor in enumerate(blocks.anchors_BN[:, number].tolist()):
            changed[row, anchor:] = 100 * torch.randn(changed[row, anchor:].shape, generator=torch.Generator())
        after = logits(target, block_states(drafter, target, changed, blocks))
        assert torch.equal(before[:, number], after[:, number])
        assert not torch.equal(before[:, -1], after[:, -1]) or number == blocks.anchors_BN.shape[1] - 1


def test_every_hidden_state_before_the_anchor_reaches_the_block_and_no_other_does(
    target: Target, drafter: Drafter
) -> None:
    input_ids, blocks = two_rows()
    hidden = target.features(input_ids).requires_grad_()
    for row, number in [(0, 0), (0, 3), (1, 2)]:
        states = block_states(drafter, target, hidden, blocks)
        (gradient,) = torch.autograd.grad(states[row, number].square().sum(), hidden)
        reached = gradient.abs().sum(-1) > 0
        expected = torch.zeros_like(reached)
        expected[row, : int(blocks.anchors_BN[row, number])] = True
        assert torch.equal(reached, expected)


def test_tokens_of_other_blocks_change_no_logit_of_a_block(target: Target, drafter: Drafter) -> None:
    input_ids, blocks = two_rows()
    hidden = target.features(input_ids)
    before = block_states(drafter, target, hidden, blocks)
    for number in range(blocks.anchors_BN.shape[1]):
        ids = random_text(number, *blocks.input_ids_BNK.shape)
        ids[:, number] = blocks.input_ids_BNK[:, number]
        after = block_states(drafter, target, hidden, blocks, ids)
        assert torch.equal(before[:, number], after[:, number])
        others = [n for n in range(blocks.anchors_BN.shape[1]) if n != number]
        assert not torch.equal(before[:, others], after[:, others])


def test_every_slot_of_a_block_sees_every_other_slot_of_it(target: Target, drafter: Drafter) -> None:
    input_ids, blocks = two_rows()
    hidden = target.features(input_ids)
    before = block_states(drafter, target, hidden, blocks)
    for slot in range(before.shape[2]):
        ids = blocks.input_ids_BNK.clone()
        ids[:, 1, slot] = 50
        changed = (block_states(drafter, target, hidden, blocks, ids) != before).any(-1)
        assert changed[:, 1].all()
        assert not changed[:, [0, 2, 3]].any()


@settings(max_examples=10, deadline=None)
@given(extra=st.integers(1, 30), seed=st.integers(0, 1000))
def test_padding_changes_nothing(target: Target, drafter: Drafter, extra: int, seed: int) -> None:
    input_ids = random_text(seed, 1, LENGTH)
    loss_mask = torch.zeros(1, LENGTH, dtype=torch.bool)
    loss_mask[:, 12:] = True
    blocks = draw(input_ids, loss_mask)
    padded_ids = torch.cat([input_ids, random_text(seed + 1, 1, extra)], dim=1)
    padded_mask = torch.cat([loss_mask, torch.zeros(1, extra, dtype=torch.bool)], dim=1)
    padded = draw(padded_ids, padded_mask)
    assert torch.equal(blocks.anchors_BN, padded.anchors_BN)
    assert torch.equal(blocks.trained_BNK, padded.trained_BNK)
    assert torch.equal(blocks.labels_BNK[blocks.trained_BNK], padded.labels_BNK[padded.trained_BNK])
    hidden, padded_hidden = target.features(input_ids), target.features(padded_ids)
    torch.testing.assert_close(hidden, padded_hidden[:, :LENGTH], **SAME_NETWORK)
    torch.testing.assert_close(
        block_states(drafter, target, hidden, blocks),
        block_states(drafter, target, padded_hidden, padded),
        **SAME_NETWORK,
    )


def test_a_block_that_only_fills_up_a_row_is_finite_and_changes_no_other_block(
    target: Target, drafter: Drafter
) -> None:
    input_ids = random_text(0, 2, LENGTH)
    loss_mask = torch.zeros(2, LENGTH, dtype=torch.bool)
    loss_mask[0, 10:30] = True
    loss_mask[1, 20:22] = True  # one block here, four in the other row
    blocks = draw(input_ids, loss_mask)
    assert blocks.keep_BN.tolist() == [[True] * 4, [True, False, False, False]]
    states = block_states(drafter, target, target.features(input_ids), blocks)
    assert states.isfinite().all()
    alone = draw(input_ids[1:], loss_mask[1:], samples=[1])
    expected = block_states(drafter, target, target.features(input_ids[1:]), alone)
    torch.testing.assert_close(states[1, :1], expected[0], **SAME_NETWORK)
