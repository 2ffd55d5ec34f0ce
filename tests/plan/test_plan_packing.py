"""Packed rows hold every sample once, waste little, and keep documents apart."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_vectors import LENGTHS

from draftsmith.plan import PlanSettings, audit_buckets, build_plan, packed_layout
from draftsmith.plan.packing import best_fit_decreasing


@given(lengths=st.lists(st.integers(1, 30), min_size=1, max_size=60))
@settings(max_examples=80, deadline=None)
def test_best_fit_decreasing_packs_everything_and_within_eleven_ninths_of_the_bound(lengths: list[int]) -> None:
    rows = best_fit_decreasing(lengths, 30)
    assert sorted(index for row in rows for index in row) == list(range(len(lengths)))
    assert max(sum(lengths[index] for index in row) for row in rows) <= 30
    # 11/9 of the optimum + 4 (Johnson 1973), and the optimum is at most twice the tokens' bound.
    assert len(rows) <= 11 / 9 * 2 * -(-sum(lengths) // 30) + 4


def test_a_packed_plan_holds_every_sample_once_and_wastes_almost_nothing() -> None:
    plan = build_plan(LENGTHS, PlanSettings(batching="packed", max_tokens=8192, pack_length=4096), seed=1)
    assert sorted(plan.samples.tolist()) == list(range(len(LENGTHS)))
    for batch in plan:
        filled = np.bincount(batch.rows, weights=LENGTHS[batch.samples])
        assert len(filled) <= 2
        assert filled.max() == batch.padded_length <= 4096
    assert audit_buckets(plan, LENGTHS)[-1].slot_waste < 0.01


def test_a_smaller_window_packs_looser_and_epochs_differ() -> None:
    tight, loose = (
        build_plan(LENGTHS, PlanSettings(batching="packed", pack_window=window), seed=1).num_batches
        for window in (8192, 16)
    )
    assert tight < loose
    packed = PlanSettings(batching="packed")
    assert build_plan(LENGTHS, packed, seed=1).sha256 != build_plan(LENGTHS, packed, seed=1, epoch=1).sha256


def test_positions_restart_with_every_document_and_padding_belongs_to_none() -> None:
    layout = packed_layout(np.array([7, 3, 9]), np.array([0, 0, 1]), np.array([2, 3, 4]), 6)
    assert layout.document_ids.tolist() == [[0, 0, 1, 1, 1, -1], [0, 0, 0, 0, -1, -1]]
    assert layout.position_ids.tolist() == [[0, 1, 0, 1, 2, 0], [0, 1, 2, 3, 0, 0]]
    assert layout.documents == ((7, 0, 0, 2), (3, 0, 2, 3), (9, 1, 0, 4))
