"""The plan in short: every sample once, no repeats, the same plan for the same seed."""

from __future__ import annotations

import numpy as np

from draftsmith.plan import PlanSettings, build_plan

LENGTHS = np.random.default_rng(0).integers(1, 2000, 3000)


def test_every_sample_is_planned_exactly_once_and_within_the_budget() -> None:
    plan = build_plan(LENGTHS, PlanSettings(max_tokens=4096), seed=1)
    assert sorted(plan.samples.tolist()) == list(range(len(LENGTHS)))
    for batch in plan:
        assert len(batch.samples) * batch.padded_length <= 4096
        assert LENGTHS[batch.samples].max() == batch.padded_length


def test_the_same_seed_gives_the_same_plan_and_another_epoch_another() -> None:
    settings = PlanSettings(max_tokens=4096)
    first = build_plan(LENGTHS, settings, seed=1)
    assert build_plan(LENGTHS, settings, seed=1).sha256 == first.sha256
    assert build_plan(LENGTHS, settings, seed=1, epoch=1).sha256 != first.sha256
