"""Blocks: keyed, fresh in every epoch, valid by rule, labelled by position; nothing is trained past a turn."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from draftsmith.drafter import slot_weights
from draftsmith.target import Target
from draftsmith.training import TrainingHead, block_loss
from helpers import BLOCK_SIZE, MASK_TOKEN_ID, block_states, draw, new_drafter, random_text

masks = st.lists(st.booleans(), min_size=2, max_size=40)


@settings(max_examples=80, deadline=None)
@given(mask=masks, num_anchors=st.integers(1, 6), seed=st.integers(0, 3), epoch=st.integers(0, 3))
def test_anchors_are_valid_distinct_and_ascending_and_as_many_as_there_can_be(
    mask: list[bool], num_anchors: int, seed: int, epoch: int
) -> None:
    loss_mask = torch.tensor([mask])
    blocks = draw(random_text(0, 1, len(mask)), loss_mask, num_anchors=num_anchors, seed=seed, epoch=epoch)
    anchors = blocks.anchors_BN[blocks.keep_BN].tolist()
    valid = [a for a in range(len(mask) - 1) if mask[a] and mask[a + 1]]
    assert anchors == sorted(set(anchors))
    assert set(anchors) <= set(valid)
    assert len(anchors) == min(num_anchors, len(valid)) == blocks.num_blocks


@settings(max_examples=80, deadline=None)
@given(mask=masks)
def test_labels_stand_at_the_slots_own_position_and_training_ends_with_the_turn(mask: list[bool]) -> None:
    ids = random_text(1, 1, len(mask))
    blocks = draw(ids, torch.tensor([mask]), num_anchors=len(mask))
    assert not blocks.trained_BNK[..., 0].any()
    for number, (anchor, kept) in enumerate(
        zip(blocks.anchors_BN[0].tolist(), blocks.keep_BN[0].tolist(), strict=True)
    ):
        going = kept
        expected_ids = [int(ids[0, anchor]) if kept else MASK_TOKEN_ID, *[MASK_TOKEN_ID] * (BLOCK_SIZE - 1)]
        assert blocks.input_ids_BNK[0, number].tolist() == expected_ids
        for slot in range(1, BLOCK_SIZE):
            position = anchor + slot
            going = going and position < len(mask) and mask[position]
            assert bool(blocks.trained_BNK[0, number, slot]) == going
            if going:
                assert blocks.labels_BNK[0, number, slot] == ids[0, position]
    expected = blocks.anchors_BN[..., None] + torch.arange(BLOCK_SIZE)
    assert torch.equal(blocks.positions_BQ(), expected.flatten(1))


def test_a_second_turn_is_not_trained_from_a_block_of_the_first() -> None:
    mask = torch.tensor([[False] * 3 + [True] * 3 + [False] * 2 + [True] * 6])
    blocks = draw(random_text(0, 1, 14), mask, num_anchors=14)
    number = blocks.anchors_BN[0].tolist().index(3)
    assert blocks.trained_BNK[0, number].tolist() == [False, True, True, False, False, False, False, False]


def test_anchors_do_not_depend_on_the_batch_a_sample_is_in() -> None:
    ids, mask = random_text(0, 3, 60), torch.ones(3, 60, dtype=torch.bool)
    mask[:, :10] = False
    together = draw(ids, mask, samples=[7, 8, 9])
    for row, sample in enumerate([7, 8, 9]):
        alone = draw(ids[row : row + 1], mask[row : row + 1], samples=[sample])
        assert torch.equal(alone.anchors_BN[0], together.anchors_BN[row])
    turned = draw(ids.flip(0), mask.flip(0), samples=[9, 8, 7])
    assert torch.equal(turned.anchors_BN, together.anchors_BN.flip(0))


def test_anchors_are_fresh_in_every_epoch_and_the_same_for_the_same_key() -> None:
    ids, mask = random_text(0, 1, 200), torch.ones(1, 200, dtype=torch.bool)
    drawn = [tuple(draw(ids, mask, epoch=epoch).anchors_BN[0].tolist()) for epoch in range(20)]
    assert len(set(drawn)) == 20
    assert drawn == [tuple(draw(ids, mask, epoch=epoch).anchors_BN[0].tolist()) for epoch in range(20)]
    assert drawn[0] != tuple(draw(ids, mask, seed=1).anchors_BN[0].tolist())
    assert drawn[0] != tuple(draw(ids, mask, samples=[1]).anchors_BN[0].tolist())


def test_every_valid_anchor_is_drawn_sooner_or_later() -> None:
    ids, mask = random_text(0, 1, 20), torch.ones(1, 20, dtype=torch.bool)
    seen = {a for epoch in range(60) for a in draw(ids, mask, epoch=epoch).anchors_BN[0].tolist()}
    assert seen == set(range(19))


@pytest.mark.parametrize("rows", [[False], [False, True]])
def test_a_row_without_a_valid_anchor_keeps_its_slot_and_gives_finite_zero_gradients(
    rows: list[bool], target: Target
) -> None:
    ids, mask = random_text(0, len(rows), 30), torch.zeros(len(rows), 30, dtype=torch.bool)
    mask[:, 12] = True  # a lone supervised token is no anchor
    for row, valid in enumerate(rows):
        mask[row, 10:20] |= valid
    blocks = draw(ids, mask)
    assert blocks.anchors_BN.shape[1] >= 1
    assert blocks.keep_BN.any(1).tolist() == rows
    drafter = new_drafter(target)
    hidden = target.features(ids).requires_grad_()
    states = block_states(drafter, target, hidden, blocks)
    parts = block_loss(
        states.flatten(1, 2),
        blocks,
        TrainingHead(target.head.weight, None, None),
        weights_K=slot_weights(BLOCK_SIZE),
        kind="ce",
        chunk=64,
    )
    (parts.numerator / parts.denominator.clamp(min=1e-9)).backward()
    assert hidden.grad is not None
    assert not hidden.grad[[row for row, valid in enumerate(rows) if not valid]].any()
    for name, parameter in drafter.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all()
        assert parameter.grad.any() == any(rows), name


def test_slot_weights_decay_with_the_gamma_of_the_block_size() -> None:
    for block_size, gamma in [(16, 7.0), (10, 5.0), (8, 4.0)]:
        weights = slot_weights(block_size).double()
        assert weights[0] == 0
        torch.testing.assert_close(
            weights[1:], torch.exp(-torch.arange(block_size - 1).double() / gamma), rtol=1e-6, atol=0
        )
    assert slot_weights(16)[-1] == pytest.approx(0.135, abs=5e-4)  # the paper's own figure
    assert slot_weights(4, gamma=1e9).tolist() == [0, 1, 1, 1]
