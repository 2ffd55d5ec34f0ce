"""Never train on garbage: what is not finite is skipped, counted, and stops the run when it does not end."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from chaos import lines_of
from hypothesis import given, settings
from hypothesis import strategies as st

import draftsmith.training.step as step_module
from draftsmith.training import Guards, load_checkpoint
from helpers import Finished


def spoil(monkeypatch: pytest.MonkeyPatch, where: str, batches: range, value: float = math.nan) -> None:
    """Make loss or gradient of these batches, counted from 0, something that no model should see."""
    original, count = step_module.block_loss, iter(range(10**6))

    def spoiled(*arguments: Any, **settings: Any) -> Any:
        parts = original(*arguments, **settings)
        if next(count) not in batches:
            return parts
        if where == "gradient":
            parts.numerator.register_hook(lambda gradient: gradient * value)
            return parts
        return dataclasses.replace(parts, numerator=parts.numerator * value)

    monkeypatch.setattr(step_module, "block_loss", spoiled)


@pytest.mark.parametrize("where", ["loss", "gradient"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("accumulated", [1, 2])
def test_P12_what_is_not_finite_is_skipped_and_counted_and_parameters_stay_finite(
    where: str,
    value: float,
    accumulated: int,
    train: Callable[..., tuple[Finished, Path]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spoil(monkeypatch, where, range(4, 5), value)
    done, run = train(f"train.grad_accum={accumulated}")
    assert done.code == 0, done.err
    drafter, record, _ = load_checkpoint(run)
    assert all(bool(parameter.isfinite().all()) for parameter in drafter.parameters())
    assert (record["step"], record["guards"]["num_skipped"]) == (8, 1)
    assert json.loads((run / "summary.json").read_text(encoding="utf-8"))["num_skipped_steps"] == 1
    (event,) = [line for line in lines_of(run / "events.jsonl") if line["event"] == "not_finite"]
    assert event["step"] == 4 // accumulated + 1
    assert event["samples"]


def test_P12_a_skipped_step_leaves_parameters_and_moments_as_they_were(
    train: Callable[..., tuple[Finished, Path]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    spoil(monkeypatch, "gradient", range(3, 8))
    done, run = train("checkpoint.every_steps=1", "checkpoint.keep_last=20")
    assert done.code == 0, done.err
    before, after = (run / "checkpoints" / f"step-{step:06d}" for step in (3, 8))
    if before.exists():  # saving may have been busy with the step before
        for name in ("drafter.safetensors", "optimizer.safetensors"):
            assert (before / name).read_bytes() == (after / name).read_bytes()


def test_P12_ten_in_a_row_stop_the_run_with_a_checkpoint_and_name_step_and_samples(
    train: Callable[..., tuple[Finished, Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    spoil(monkeypatch, "loss", range(5, 10**6))
    done, run = train("train.max_steps=50")
    assert done.code == 2
    assert "not finite in 10 steps in a row, the last being step 15 (batch " in done.err
    assert "Lower train.lr" in done.err
    assert "Traceback" not in done.err
    drafter, record, _ = load_checkpoint(run)
    assert record["step"] == 15
    assert all(bool(parameter.isfinite().all()) for parameter in drafter.parameters())
    assert lines_of(run / "events.jsonl")[-1]["event"] == "failed"


@pytest.mark.parametrize("skip", ["false", "true"])
def test_a_loss_that_jumps_is_told_and_skipped_where_that_is_asked_for(
    skip: str, train: Callable[..., tuple[Finished, Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("draftsmith.training.guards.WINDOW", 5)
    spoil(monkeypatch, "loss", range(6, 7), 100.0)
    done, run = train(f"train.skip_spikes={skip}")
    assert done.code == 0, done.err
    (event,) = [line for line in lines_of(run / "events.jsonl") if line["event"] == "spike"]
    assert (event["step"], event["skipped"]) == (7, skip == "true")
    assert [line["step"] for line in lines_of(run / "metrics.jsonl") if line["skipped"]] == [7] * (skip == "true")


@settings(deadline=None)
@given(st.lists(st.floats(0, 10), min_size=200, max_size=200), st.integers(0, 199))
def test_guards_go_on_after_a_restart_as_they_would_have(losses: list[float], place: int) -> None:
    whole, first = Guards(), Guards()
    found = [whole.judge(loss, 1.0) for loss in losses]
    parts = [first.judge(loss, 1.0) for loss in losses[:place]]
    second = Guards.from_json(json.loads(json.dumps(first.to_json())))
    parts += [second.judge(loss, 1.0) for loss in losses[place:]]
    assert parts == found
    assert second == whole


def test_ordinary_losses_are_no_spikes_and_a_lasting_change_becomes_normal() -> None:
    generator = torch.Generator().manual_seed(0)
    guards = Guards()
    falling = [5 * 0.999**step + 0.3 * float(torch.randn((), generator=generator)) for step in range(3000)]
    assert not any(guards.judge(loss, 1.0) for loss in falling)
    after = [guards.judge(20.0, 1.0) for _ in range(130)]
    assert after[0] == "spike"
    assert "spike" not in after[10:]


def test_a_constant_loss_makes_no_spike_of_rounding() -> None:
    guards = Guards()
    assert not any(guards.judge(1.0, 1.0) for _ in range(128))
    assert not guards.judge(1.0 + 1e-6, 1.0)
    assert guards.judge(1.1, 1.0) == "spike"


def test_a_few_bad_steps_between_good_ones_do_not_stop() -> None:
    guards = Guards()
    for _ in range(5):
        for _ in range(9):
            guards.judge(math.nan, 1.0)
        assert not guards.must_stop
        guards.judge(1.0, 1.0)
    guards = Guards()
    for _ in range(10):
        guards.judge(1.0, math.inf)
    assert guards.must_stop
