"""Edges and batches: what is optimal is optimal, what is bounded is bounded."""

from __future__ import annotations

import dataclasses
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_vectors import LENGTHS

from draftsmith.config import BatchingConfig
from draftsmith.plan import PlanSettings, audit_buckets, build_plan
from draftsmith.plan.buckets import assign_buckets, choose_edges, rows_per_batch
from draftsmith.plan.keyed import IntArray

SMALL_LENGTHS = st.lists(st.integers(1, 24), min_size=1, max_size=40)


def num_static_batches(lengths: IntArray, edges: tuple[int, ...], settings: PlanSettings) -> int:
    sizes = np.bincount(assign_buckets(lengths, edges), minlength=len(edges))
    return sum(-(-int(size) // rows_per_batch(edge, settings)) for size, edge in zip(sizes, edges, strict=True))


def fewest_batches(lengths: IntArray, settings: PlanSettings) -> int:
    """By trying every set of tops."""
    longest = int(lengths.max())
    below = [int(length) for length in np.unique(lengths)[:-1]]
    choices = (
        (*chosen, longest)
        for num in range(min(settings.num_buckets, len(below) + 1))
        for chosen in combinations(below, num)
    )
    return min(num_static_batches(lengths, edges, settings) for edges in choices)


@given(lengths=SMALL_LENGTHS, num_buckets=st.integers(1, 3), max_rows=st.sampled_from([None, 1, 3]))
@settings(max_examples=60, deadline=None)
def test_chosen_edges_need_as_few_batches_as_any_but_for_partial_ones(
    lengths: list[int], num_buckets: int, max_rows: int | None
) -> None:
    array = np.array(lengths)
    chosen = PlanSettings(max_tokens=24, num_buckets=num_buckets, max_rows=max_rows, shapes="static")
    edges = choose_edges(array, chosen)
    assert len(edges) <= num_buckets
    assert num_static_batches(array, edges, chosen) <= fewest_batches(array, chosen) + num_buckets - 1


def test_eight_chosen_edges_beat_hand_made_ones_by_fifteen_percent_on_long_tailed_lengths() -> None:
    draw = np.random.default_rng(1)
    pieces = [np.exp(draw.normal(6.837, 0.510, 20000)), np.exp(draw.normal(7.744, 0.431, 20000)), np.full(2418, 8192)]
    lengths = np.clip(np.concatenate(pieces), 16, 8192).astype(np.int64)
    by_hand = PlanSettings(edges=(770, 1216, 1728, 2432, 3296), shapes="static")
    before = num_static_batches(lengths, choose_edges(lengths, by_hand), by_hand)
    after = num_static_batches(lengths, choose_edges(lengths, PlanSettings()), PlanSettings(shapes="static"))
    assert after <= 0.85 * before


@pytest.mark.parametrize("method", ["batches", "quantile", "geometric"])
@pytest.mark.parametrize("shapes", ["static", "dynamic"])
def test_every_sample_is_planned_exactly_once_and_within_the_budget(method: str, shapes: str) -> None:
    chosen = PlanSettings(max_tokens=4096, max_rows=50, edge_method=method, shapes=shapes)
    plan = build_plan(LENGTHS, chosen, seed=1)
    assert sorted(plan.samples.tolist()) == list(range(len(LENGTHS)))
    assert list(plan.edges) == sorted(set(plan.edges))
    assert min(plan.counts) > 0
    for batch in plan:
        lengths = LENGTHS[batch.samples]
        assert len(batch.samples) * batch.padded_length <= 4096
        assert len(batch.samples) <= 50
        assert batch.padded_length == (plan.edges[batch.bucket] if shapes == "static" else lengths.max())
        assert lengths.max() <= plan.edges[batch.bucket]
        assert batch.bucket == 0 or lengths.min() > plan.edges[batch.bucket - 1]


def test_static_plans_have_the_same_number_of_batches_in_every_epoch() -> None:
    plans = [build_plan(LENGTHS, PlanSettings(shapes="static"), seed=0, epoch=epoch) for epoch in range(4)]
    assert len({plan.counts for plan in plans}) == 1
    assert len({plan.sha256 for plan in plans}) == 4


def test_explicit_edges_get_one_more_bucket_for_what_is_longer() -> None:
    plan = build_plan([5, 50, 500], PlanSettings(max_tokens=1000, edges=(10, 100)), seed=0)
    assert plan.edges == (10, 100, 500)
    assert plan.counts == (1, 1, 1)


def test_a_bucket_without_samples_gets_no_batches() -> None:
    plan = build_plan([5, 6, 500], PlanSettings(max_tokens=1000, edges=(10, 100, 600)), seed=0)
    assert plan.edges == (10, 100, 600)
    assert plan.counts == (1, 0, 1)


def test_overlong_samples_are_truncated_or_dropped_and_counted() -> None:
    lengths = [10, 20, 5000, 30, 6000]
    truncated = build_plan(lengths, PlanSettings(max_tokens=100), seed=0)
    assert (truncated.num_truncated, truncated.num_dropped, len(truncated.samples)) == (2, 0, 5)
    dropped = build_plan(lengths, PlanSettings(max_tokens=100, overlong="drop"), seed=0)
    assert (dropped.num_truncated, dropped.num_dropped) == (0, 2)
    assert sorted(dropped.samples.tolist()) == [0, 1, 3]


def test_waste_is_counted_from_the_batches_themselves() -> None:
    chosen = PlanSettings(max_tokens=4096, num_buckets=4)
    plan = build_plan(LENGTHS, chosen, seed=1)
    *buckets, whole = audit_buckets(plan, LENGTHS)
    slots = sum(len(batch.samples) * batch.padded_length for batch in plan)
    assert whole.pad_waste == pytest.approx(1 - LENGTHS.sum() / slots)
    assert whole.slot_waste == pytest.approx(1 - LENGTHS.sum() / (4096 * plan.num_batches))
    assert sum(bucket.samples for bucket in buckets) == whole.samples == len(LENGTHS)
    assert [bucket.batches for bucket in buckets] == list(plan.counts)


def test_settings_are_those_of_the_configuration_page() -> None:
    fields = {field.name: field.default for field in dataclasses.fields(PlanSettings)}
    assert fields == {name: field.default for name, field in BatchingConfig.model_fields.items()}
    assert PlanSettings(**BatchingConfig(max_tokens=512).model_dump()) == PlanSettings(max_tokens=512)
