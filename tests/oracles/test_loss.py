"""The loss against loops in double precision; chunks, micro-batches and sampled heads change nothing of it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from draftsmith.drafter import Blocks, slot_weights
from draftsmith.training import TrainingHead, block_loss, head_for_step
from draftsmith.training.loss import DPACE_ALPHA, LossParts
from helpers import BLOCK_SIZE, draw, random_text
from tolerances import CHUNKED, LOSS

VOCAB, HIDDEN = 110, 12


def weight_of_head(seed: int = 0) -> torch.Tensor:
    return torch.randn(VOCAB, HIDDEN, generator=torch.Generator().manual_seed(seed))


def case(seed: int, rows: int = 2) -> tuple[torch.Tensor, Blocks]:
    """Random states and blocks with gaps in the supervision."""
    rng = np.random.default_rng(seed)
    mask = torch.from_numpy(rng.random((rows, 30)) < 0.85)
    blocks = draw(random_text(seed, rows, 30), mask, samples=range(rows))
    states = torch.randn(rows, blocks.labels_BNK[0].numel(), HIDDEN, generator=torch.Generator().manual_seed(seed))
    return states, blocks


def loss(states: torch.Tensor, blocks: Blocks, **changes: Any) -> LossParts:
    settings_: dict[str, Any] = {
        "head": TrainingHead(weight_of_head(), None, None),
        "weights_K": slot_weights(BLOCK_SIZE),
        "kind": "ce",
        "chunk": 10_000,
        **changes,
    }
    return block_loss(states, blocks, settings_.pop("head"), **settings_)


def loss_by_loops(states: torch.Tensor, blocks: Blocks, kind: str) -> dict[str, Any]:
    """One slot at a time, in double precision."""
    weight = weight_of_head().double()
    numerator = denominator = accepted = 0.0
    correct, trained = [0] * BLOCK_SIZE, [0] * BLOCK_SIZE
    rows, num_blocks, _ = blocks.labels_BNK.shape
    for row in range(rows):
        for block in range(num_blocks):
            losses: dict[int, float] = {}
            prefix = bool(blocks.keep_BN[row, block])
            accepted += prefix
            for slot in range(BLOCK_SIZE):
                if not blocks.trained_BNK[row, block, slot]:
                    continue
                logits = weight @ states[row, block * BLOCK_SIZE + slot].double()
                label = int(blocks.labels_BNK[row, block, slot])
                losses[slot] = float(torch.logsumexp(logits, 0) - logits[label])
                right = int(logits.argmax()) == label
                trained[slot] += 1
                correct[slot] += right
                prefix = prefix and right
                accepted += prefix
            for slot, value in losses.items():
                factor = math.exp(-(slot - 1) / 4.0)
                if kind == "dpace":
                    chances = {s: (1 - DPACE_ALPHA) * math.exp(-v) + DPACE_ALPHA for s, v in losses.items()}
                    factor = sum(math.prod(chances[s] for s in losses if s <= last) for last in losses if last >= slot)
                numerator += factor * value
                denominator += factor
    return {
        "numerator": numerator,
        "denominator": denominator,
        "correct": correct,
        "trained": trained,
        "accepted": accepted,
    }


@pytest.mark.parametrize("kind", ["ce", "dpace"])
@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_the_loss_equals_loops_in_double_precision(kind: str, seed: int) -> None:
    states, blocks = case(seed)
    parts, expected = loss(states, blocks, kind=kind), loss_by_loops(states, blocks, kind)
    assert float(parts.numerator) == pytest.approx(expected["numerator"], rel=LOSS["rtol"], abs=LOSS["atol"])
    assert float(parts.denominator) == pytest.approx(expected["denominator"], rel=LOSS["rtol"], abs=LOSS["atol"])
    assert parts.num_correct.tolist() == expected["correct"]
    assert parts.num_trained.tolist() == expected["trained"]
    assert float(parts.accepted) == expected["accepted"]


@pytest.mark.parametrize("kind", ["ce", "dpace"])
@pytest.mark.parametrize("chunk", [1, 7, 16])
def test_a_head_applied_in_chunks_gives_the_same_loss_and_gradient(kind: str, chunk: int) -> None:
    states, blocks = case(5)
    results = []
    for size in (10_000, chunk):
        leaf = states.clone().requires_grad_()
        parts = loss(leaf, blocks, kind=kind, chunk=size)
        parts.numerator.backward()
        results.append((parts.numerator.detach(), parts.denominator, leaf.grad, parts.num_correct))
    for whole, chunked in zip(*results, strict=True):
        torch.testing.assert_close(chunked, whole, **CHUNKED)


def test_no_gradient_reaches_a_slot_that_is_not_trained_and_one_reaches_every_slot_that_is() -> None:
    states, blocks = case(6)
    leaf = states.clone().requires_grad_()
    loss(leaf, blocks).numerator.backward()
    assert leaf.grad is not None
    reached = leaf.grad.abs().sum(-1) > 0
    assert torch.equal(reached.unflatten(1, blocks.labels_BNK.shape[1:]), blocks.trained_BNK)
    assert not reached.unflatten(1, blocks.labels_BNK.shape[1:])[..., 0].any()


@pytest.mark.parametrize("kind", ["ce", "dpace"])
def test_numerators_denominators_and_gradients_of_micro_batches_add_up(kind: str) -> None:
    states, blocks = case(7, rows=4)
    leaf = states.clone().requires_grad_()
    whole = loss(leaf, blocks, kind=kind)
    whole.numerator.backward()
    parts, gradients = [], []
    for rows in (slice(0, 1), slice(1, 4)):
        part_leaf = states[rows].clone().requires_grad_()
        some = Blocks(
            blocks.anchors_BN[rows],
            blocks.keep_BN[rows],
            blocks.input_ids_BNK[rows],
            blocks.labels_BNK[rows],
            blocks.trained_BNK[rows],
        )
        parts.append(loss(part_leaf, some, kind=kind))
        parts[-1].numerator.backward()
        gradients.append(part_leaf.grad)
    for name in ("numerator", "denominator", "num_correct", "num_trained", "accepted"):
        total = sum(getattr(part, name) for part in parts)
        torch.testing.assert_close(total, getattr(whole, name), **LOSS)
    torch.testing.assert_close(torch.cat(gradients), leaf.grad, **CHUNKED)


def test_dpace_weights_carry_no_gradient() -> None:
    states, blocks = case(8)
    leaf = states.clone().requires_grad_()
    parts = loss(leaf, blocks, kind="dpace")
    assert not parts.denominator.requires_grad
    assert parts.numerator.requires_grad


def test_a_sampled_head_of_all_rows_gives_the_loss_of_the_full_head() -> None:
    states, blocks = case(9)
    weight, bias = weight_of_head(), torch.randn(VOCAB, generator=torch.Generator().manual_seed(1))
    full = loss(states, blocks, head=TrainingHead(weight, bias, None))
    rows = loss(states, blocks, head=TrainingHead(weight, bias, torch.arange(VOCAB)))
    assert torch.equal(full.numerator, rows.numerator)
    assert torch.equal(full.num_correct, rows.num_correct)


def test_a_sampled_head_holds_every_seen_token_and_labels_find_their_rows() -> None:
    weight, seen = weight_of_head(), np.array([2, 3, 50, 80, 109])
    head = head_for_step(weight, None, seen=seen, num_negatives=20, seed=0, draw=0)
    assert head.rows is not None
    rows = head.rows.tolist()
    assert len(rows) == 25
    assert rows == sorted(set(rows))
    assert set(seen.tolist()) <= set(rows)
    assert torch.equal(head.weight[head.labels(torch.from_numpy(seen))], weight[seen])


def test_the_random_rows_are_redrawn_by_key() -> None:
    seen = np.arange(10)

    def rows(**changes: int) -> list[int]:
        settings_ = {"num_negatives": 20, "seed": 0, "draw": 0, **changes}
        head = head_for_step(weight_of_head(), None, seen=seen, **settings_)
        assert head.rows is not None
        return head.rows.tolist()

    assert rows() == rows()
    assert rows() != rows(draw=1)
    assert rows() != rows(seed=1)
    assert {row for draw_ in range(60) for row in rows(draw=draw_)} == set(range(VOCAB))


def test_a_sampled_head_that_would_hold_everything_is_the_whole_one() -> None:
    weight = weight_of_head()
    for seen, number in [(None, 5), (np.arange(100), 10), (np.arange(100), 2048)]:
        head = head_for_step(weight, None, seen=seen, num_negatives=number, seed=0, draw=0)
        assert head.rows is None
        assert head.weight is weight
