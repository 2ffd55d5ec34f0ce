"""Ctrl-C: a clean stop with exit code 130; what was trained is kept."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

import draftsmith.run.loop as loop_module
from draftsmith.export import read_drafter
from draftsmith.training import load_checkpoint, params_sha256
from helpers import CONFIGS, draftsmith


def signal_in_step(monkeypatch: pytest.MonkeyPatch, number: signal.Signals, steps: set[int]) -> None:
    """Send the signal to this process in the middle of these steps, as a terminal would."""
    original = loop_module.take_step

    def step(state: Any, *arguments: Any, **settings: Any) -> Any:
        metrics = original(state, *arguments, **settings)
        if state.step in steps:
            os.kill(os.getpid(), number)
        return metrics

    monkeypatch.setattr(loop_module, "take_step", step)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_in_training_keeps_checkpoint_and_drafter_and_says_where(
    number: signal.Signals, code: int, settings_of_run: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    signal_in_step(monkeypatch, number, {3})
    run = tmp_path / "run"
    done = draftsmith("train", CONFIGS / "tiny-cpu.toml", *settings_of_run, f"run.dir={run}")
    assert done.code == code
    assert f"stopped by {number.name}" in done.err
    assert str(run) in done.err
    assert "Traceback" not in done.err
    checkpoint, state, _ = load_checkpoint(run)
    summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    assert state["step"] == summary["train_steps"] == 3
    assert params_sha256(checkpoint) == summary["params_sha256"]
    read_drafter(run / "drafter")
    events = [json.loads(line)["event"] for line in (run / "events.jsonl").read_text(encoding="utf-8").splitlines()]
    assert events[-1] == "interrupted"
    assert not [path for path in run.rglob("*") if ".tmp-" in path.name]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_what_an_interrupted_run_kept_can_be_measured_and_exported(
    settings_of_run: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    signal_in_step(monkeypatch, signal.SIGINT, {2})
    run = tmp_path / "run"
    assert draftsmith("train", CONFIGS / "tiny-cpu.toml", *settings_of_run, f"run.dir={run}").code == 130
    measured = draftsmith("eval", run, "eval.num_timed=0")
    assert measured.code == 0, measured.err
    assert json.loads((run / "summary.json").read_text(encoding="utf-8"))["lossless"] is True
    assert draftsmith("export", run, tmp_path / "drafter").code == 0


def test_a_second_signal_stops_at_once(
    settings_of_run: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = loop_module.take_step

    def twice(*arguments: Any, **settings: Any) -> Any:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        return original(*arguments, **settings)

    monkeypatch.setattr(loop_module, "take_step", twice)
    done = draftsmith("train", CONFIGS / "tiny-cpu.toml", *settings_of_run, f"run.dir={tmp_path / 'run'}")
    assert done.code == 130
    assert "Traceback" not in done.err


def pressed(*_arguments: object, **_settings: object) -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_ctrl_c_while_measuring_stops_and_keeps_what_was_trained(
    settings_of_run: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("draftsmith.evaluation.measure.speculate", pressed)
    run = tmp_path / "run"
    done = draftsmith("train", CONFIGS / "tiny-cpu.toml", *settings_of_run, f"run.dir={run}")
    assert done.code == 130
    assert "Traceback" not in done.err
    assert load_checkpoint(run)[1]["step"] == 8
    read_drafter(run / "drafter")


def test_ctrl_c_before_training_stops_at_once_and_leaves_nothing(
    settings_of_run: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("draftsmith.run.opening.cache_root", lambda: tmp_path / "cache")
    monkeypatch.setattr("draftsmith.target.Target.features", pressed)
    run = tmp_path / "run"
    done = draftsmith("train", CONFIGS / "tiny-cpu.toml", *settings_of_run, "target.cache=disk", f"run.dir={run}")
    assert done.code == 130
    assert not run.exists()
    assert not [path for path in (tmp_path / "cache" / "features").glob("*/done.txt") if path.stat().st_size]


def test_ctrl_c_outside_training_ends_with_130_too(
    conversations: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("draftsmith.run.conversations.generate", pressed)
    destination = tmp_path / "made.jsonl"
    done = draftsmith("regenerate", conversations, destination, "--target", "tiny-random")
    assert done.code == 130
    assert "draftsmith: stopped" in done.err
    assert not destination.exists()
