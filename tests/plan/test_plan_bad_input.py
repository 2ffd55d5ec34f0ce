"""What cannot be planned is refused with the value, the place and the way out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from draftsmith.errors import PlanError
from draftsmith.plan import PlanSettings, build_plan
from draftsmith.plan.report import parse_counts, plan_report, read_lengths


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        ([], "no samples to plan"),
        ([5, 0, 7], "sample 1 has 0 tokens"),
        ([5, -2], "sample 1 has -2 tokens"),
        ([5.5, 2.0], "whole numbers"),
        ([[1, 2], [3, 4]], r"shape \(2, 2\)"),
    ],
)
def test_lengths_that_cannot_be_planned(lengths: Any, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        build_plan(lengths, PlanSettings(), seed=0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_tokens": 0}, "batching.max_tokens is 0"),
        ({"num_buckets": 0}, "batching.num_buckets is 0"),
        ({"edges": (10, 5)}, "must increase, but 5 follows 10"),
        ({"edges": (10, 10)}, "must increase, but 10 follows 10"),
        ({"edges": ()}, "batching.edges is empty"),
        ({"edges": (0, 10)}, "starts with 0"),
        ({"edges": (10, 9000)}, "ends with 9000, more than batching.max_tokens"),
        ({"shapes": "round"}, "batching.shapes is 'round'; choose one of static, dynamic"),
        ({"overlong": "keep"}, "choose one of truncate, drop, error"),
        ({"pack_length": 9000}, "a packed row must fit into a batch"),
    ],
)
def test_settings_that_contradict_themselves(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        PlanSettings(**settings)


def test_an_unknown_order_lists_the_known_ones() -> None:
    with pytest.raises(PlanError, match="'best'; known orders: quota, "):
        build_plan([1, 2], PlanSettings(order="best"), seed=0)


def test_a_budget_smaller_than_one_sample_follows_the_overlong_rule() -> None:
    with pytest.raises(PlanError, match=r"sample 1 has 900 tokens \(1 samples are too long\); raise it"):
        build_plan([100, 900], PlanSettings(max_tokens=512, overlong="error"), seed=0)
    with pytest.raises(PlanError, match="all 2 samples are longer than 512"):
        build_plan([900, 901], PlanSettings(max_tokens=512, overlong="drop"), seed=0)
    assert build_plan([900, 901], PlanSettings(max_tokens=512), seed=0).num_batches == 2


@pytest.mark.parametrize("batching", ["bucketed", "packed"])
@pytest.mark.parametrize("shapes", ["static", "dynamic"])
def test_one_sample_and_one_bucket_are_enough(batching: str, shapes: str) -> None:
    plan = build_plan([7], PlanSettings(batching=batching, shapes=shapes), seed=0)
    assert [batch.samples.tolist() for batch in plan] == [[0]]
    same = build_plan(np.full(1000, 64), PlanSettings(batching=batching, shapes=shapes), seed=0)
    assert same.counts == (8,)


def test_a_step_outside_of_the_epoch_is_refused() -> None:
    plan = build_plan([7, 8], PlanSettings(), seed=0)
    with pytest.raises(PlanError, match="step 1 is outside of this epoch, which has steps 0 to 0"):
        plan.batch(1)
    with pytest.raises(PlanError, match="step -1"):
        plan.from_step(-1)
    assert list(plan.from_step(1)) == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "do not read as whole numbers"),
        ("3,x", "do not read"),
        ("0,0", "hold no batch"),
        ("3,-1", "has -1 batches"),
    ],
)
def test_counts_that_cannot_be_ordered(text: str, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        parse_counts(text)


def test_counts_with_zeros_are_ordered_without_those_buckets() -> None:
    report = plan_report(counts=[0, 3, 0, 4])
    assert report.record["counts"] == [0, 3, 0, 4]
    assert report.record["policies"]["quota"]["exhaustion"][0] == 0


def test_a_world_larger_than_the_epoch_is_refused_by_the_report() -> None:
    with pytest.raises(PlanError, match="16 ranks x 2 accumulation steps need 32 batches"):
        plan_report(counts=[3, 4], world_size=16, grad_accum=2)


def test_a_report_needs_lengths_or_counts_and_not_both() -> None:
    for given in ({}, {"lengths": [1], "counts": [1]}):
        with pytest.raises(PlanError, match="one of the two"):
            plan_report(**given)


def test_a_lengths_file_that_does_not_read_is_refused_by_line(tmp_path: Path) -> None:
    path = tmp_path / "lengths.txt"
    path.write_text("5\n\n7\nseven\n")
    with pytest.raises(PlanError, match="line 4: 'seven' is not a whole number"):
        read_lengths(path)
    with pytest.raises(PlanError, match="cannot be read"):
        read_lengths(tmp_path / "missing.txt")
    path.write_text("5\n\n7\n")
    assert read_lengths(path).tolist() == [5, 7]
