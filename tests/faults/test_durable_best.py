"""Measured on held-out prompts while it trains: the best step is kept, and training stops when nothing gets better."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from chaos import lines_of, stop_after

import draftsmith.run.judging as judging_module
from draftsmith.evaluation import ServedAcceptance
from draftsmith.export import read_drafter
from draftsmith.training import load_checkpoint, params_sha256
from helpers import Finished


def scripted(monkeypatch: pytest.MonkeyPatch, lengths: list[float]) -> None:
    """Measurements during training give these, one after the other."""
    left = iter(lengths)

    def measure(*_arguments: Any, **_settings: Any) -> ServedAcceptance:
        return ServedAcceptance(next(left), 3.5, 0.5, (0.5,), lossless=True, num_prompts=3, num_verifications=9)

    monkeypatch.setattr(judging_module, "measure_during_training", measure)


MEASURING = ("eval.num_prompts=3", "eval.every_steps=2", "eval.num_timed=0")


def test_training_stops_early_by_measured_acceptance_and_exports_the_best_step(
    train: Callable[..., tuple[Finished, Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted(monkeypatch, [2.0, 3.0, 2.5, 2.9])
    done, run = train(*MEASURING, "train.max_steps=50", "eval.patience=2", "eval.export=best")
    assert done.code == 0, done.err
    summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    assert (summary["train_steps"], summary["exported_step"]) == (8, 4)
    assert summary["held_out_acceptance"] == {"2": 2.0, "4": 3.0, "6": 2.5, "8": 2.9}
    best = run / "checkpoints" / "step-000004"
    assert best.is_dir()
    kept = {path.name for path in (run / "checkpoints").glob("step-*")}
    assert kept == {"step-000004", "step-000006", "step-000008"}
    exported = read_drafter(run / "drafter")
    assert params_sha256(exported) != params_sha256(load_checkpoint(run)[0].bfloat16())
    measured = [line for line in lines_of(run / "metrics.jsonl") if "held_out_acceptance" in line]
    assert [line["step"] for line in measured] == [2, 4, 6, 8]


def test_a_resumed_run_remembers_what_was_measured(
    train: Callable[..., tuple[Finished, Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted(monkeypatch, [2.0, 3.0, 2.5, 2.9])
    settings = (*MEASURING, "train.max_steps=50", "eval.patience=2", "eval.export=best")
    with monkeypatch.context() as patched:
        stop_after(patched, 5)
        assert train(*settings)[0].code == 143
    done, run = train(*settings)
    assert done.code == 0, done.err
    assert json.loads((run / "summary.json").read_text(encoding="utf-8"))["exported_step"] == 4


def test_what_is_measured_during_training_is_what_is_measured_at_its_end(
    train: Callable[..., tuple[Finished, Path]],
) -> None:
    done, run = train("eval.num_prompts=3", "eval.every_steps=4", "eval.num_during=3", "eval.num_timed=0")
    assert done.code == 0, done.err
    summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    assert summary["held_out_acceptance"].keys() == {"4", "8"}
    assert summary["held_out_acceptance"]["8"] == summary["acceptance_length"]
    measured = [line for line in lines_of(run / "metrics.jsonl") if "held_out_acceptance" in line]
    for line in measured:
        gap = line["held_out_teacher_forced"] - line["held_out_acceptance"]
        assert line["held_out_gap"] == pytest.approx(gap)


def test_a_signal_while_measuring_stops_and_the_measurement_is_made_up_for(
    train: Callable[..., tuple[Finished, Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    original, pressed = judging_module.measure_during_training, []

    def measure(*arguments: Any, **settings: Any) -> Any:
        if not pressed:
            pressed.append(os.kill(os.getpid(), signal.SIGTERM))
        return original(*arguments, **settings)

    monkeypatch.setattr(judging_module, "measure_during_training", measure)
    assert train(*MEASURING)[0].code == 143
    done, run = train(*MEASURING)
    assert done.code == 0, done.err
    summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    assert summary["held_out_acceptance"].keys() == {"2", "4", "6", "8"}
