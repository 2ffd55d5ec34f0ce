"""Dealing to ranks: everyone takes the same number of steps, and the colouring proves each one's share."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_vectors import PRODUCTION, count_vectors

from draftsmith.errors import PlanError
from draftsmith.plan import POLICIES, audit_ranks, deal_order
from draftsmith.plan.deal import METHODS, TAILS, rank_sequences

WORLDS = st.integers(1, 9)


@given(counts=count_vectors(), world=WORLDS, policy=st.sampled_from(["quota", "shuffle", "sequential"]))
@settings(max_examples=60, deadline=None)
def test_every_ranks_count_is_the_floor_or_ceiling_of_its_share_at_every_step(
    counts: list[int], world: int, policy: str
) -> None:
    order = POLICIES[policy](counts, 1).sequence
    deal = deal_order(order, world, tail="refill")
    for bucket in range(len(counts)):
        is_bucket = order[deal.batches] == bucket
        by_rank = np.cumsum(is_bucket, axis=0)
        in_all = by_rank.sum(axis=1, keepdims=True)
        assert ((by_rank == in_all // world) | (by_rank == -(-in_all // world))).all()


@given(counts=count_vectors(), world=WORLDS, accum=st.integers(1, 4), method=st.sampled_from(METHODS))
@settings(max_examples=60, deadline=None)
def test_ranks_never_differ_in_steps_and_every_batch_is_dealt_by_rule(
    counts: list[int], world: int, accum: int, method: str
) -> None:
    order = POLICIES["quota"](counts, 1).sequence
    for tail in TAILS:
        if tail == "drop" and len(order) < world * accum:
            with pytest.raises(PlanError, match="use fewer ranks"):
                deal_order(order, world, grad_accum=accum, method=method, tail=tail)
            continue
        deal = deal_order(order, world, grad_accum=accum, method=method, tail=tail)
        dealt = np.bincount(deal.batches.ravel(), minlength=len(order))
        assert deal.num_steps % accum == 0
        assert deal.batches.shape == (deal.num_steps, world)
        if tail == "drop":
            assert dealt.max() == 1
            assert deal.num_left_out == len(order) - deal.batches.size == len(order) % (world * accum)
            assert sorted(deal.batches.ravel().tolist()) == list(range(deal.batches.size))
        else:
            assert dealt.min() >= 1
            assert deal.num_repeated == deal.batches.size - len(order) < world * accum


def test_every_step_takes_the_next_batches_of_the_global_order() -> None:
    order = POLICIES["quota"](PRODUCTION, 0).sequence
    for world in (2, 8):
        batches = deal_order(order, world).batches
        assert (np.sort(batches, axis=1) == np.arange(batches.size).reshape(-1, world)).all()


@pytest.mark.parametrize(("method", "drift", "repeats"), [("coloring", 1.3, 0.12), ("greedy", 2.2, 0.004)])
def test_eight_ranks_of_the_production_order_stay_near_their_shares(method: str, drift: float, repeats: float) -> None:
    order = POLICIES["quota"](PRODUCTION, 0).sequence
    ranks = audit_ranks(order, PRODUCTION, deal_order(order, 8, method=method))
    assert len({rank.steps for rank in ranks}) == 1
    assert max(rank.max_drift for rank in ranks) < drift
    assert sum(rank.adjacent_repeats for rank in ranks) / len(order) < repeats


def test_dealing_in_turn_would_not_do() -> None:
    """The reason for the colouring: an alternating order dealt in turn gives each rank one bucket only."""
    order = POLICIES["quota-nominal"]([50, 50], 0).sequence
    in_turn = [order[rank::2] for rank in range(2)]
    assert any(len(set(sequence.tolist())) == 1 for sequence in in_turn)
    for sequence in rank_sequences(order, deal_order(order, 2)):
        assert np.bincount(sequence).tolist() == [25, 25]


def test_a_world_larger_than_the_epoch_needs_the_refill_rule() -> None:
    order = POLICIES["quota"]([2, 3], 0).sequence
    with pytest.raises(PlanError, match="the epoch has 5"):
        deal_order(order, 8)
    deal = deal_order(order, 8, tail="refill")
    assert deal.batches.shape == (1, 8)
    assert set(deal.batches.ravel().tolist()) == {0, 1, 2, 3, 4}


def test_a_run_goes_on_with_another_number_of_ranks_at_the_same_batch() -> None:
    order = POLICIES["quota"]([20, 30, 50], 0).sequence
    before = deal_order(order, 2).batches[:11]
    after = deal_order(order, 3, start=22)
    assert after.num_left_out == 0
    assert sorted([*before.ravel().tolist(), *after.batches.ravel().tolist()]) == list(range(100))
    assert deal_order(order, 3, start=99).num_steps == 0
    with pytest.raises(PlanError, match="batch 101 is outside"):
        deal_order(order, 3, start=101)
