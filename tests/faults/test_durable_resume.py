"""Going on with a run: exactly where it stood, never with other settings, never two at once."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from chaos import ending_of, events_of, leftovers, lines_of, stop_after, wait_until

import draftsmith.run.loop as loop_module
from draftsmith.errors import DataError
from draftsmith.training import TrainState, load_checkpoint, newest_checkpoint
from helpers import CONFIGS, Finished, draftsmith
from processes import Training

TINY = CONFIGS / "tiny-cpu.toml"


@pytest.fixture
def interrupted(train: Callable[..., tuple[Finished, Path]]) -> Path:
    with pytest.MonkeyPatch.context() as patched:
        stop_after(patched, 3)
        done, run = train()
    assert done.code == 143, done.err
    return run


@pytest.mark.parametrize("how", [["--resume"], []], ids=["asked for", "by itself"])
def test_an_interrupted_run_goes_on_after_its_last_step_and_ends_as_if_nothing_had_been(
    how: list[str], interrupted: Path, train: Callable[..., tuple[Finished, Path]]
) -> None:
    whole, undisturbed = train(name="undisturbed")
    assert whole.code == 0, whole.err
    done, run = train(*how)
    assert done.code == 0, done.err
    assert "going on after step 3" in done.err
    assert [event["step"] for event in events_of(run, "resume")] == [3]
    assert ending_of(run) == ending_of(undisturbed)


def test_an_error_within_a_step_leaves_no_line_of_it_and_the_step_is_done_again(
    train: Callable[..., tuple[Finished, Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    two = "train.grad_accum=2"
    whole, undisturbed = train(two, name="undisturbed")
    assert whole.code == 0, whole.err
    original = loop_module.add_batch

    def failing(state: TrainState, *arguments: Any, **settings: Any) -> Any:
        if (state.step, state.pending.num_batches) == (3, 1):
            raise DataError("sample 7 is unreadable")
        return original(state, *arguments, **settings)

    with monkeypatch.context() as patched:
        patched.setattr(loop_module, "add_batch", failing)
        done, run = train(two)
    assert done.code == 2
    assert [line["step"] for line in lines_of(run / "samples.jsonl")] == [1, 1, 2, 2, 3, 3]
    done, run = train(two)
    assert done.code == 0, done.err
    assert [event["step"] for event in events_of(run, "resume")] == [3]
    assert ending_of(run) == ending_of(undisturbed)


def test_the_directory_of_a_run_is_all_that_resuming_needs(interrupted: Path) -> None:
    done = draftsmith("train", interrupted, "--resume")
    assert done.code == 0, done.err
    assert load_checkpoint(interrupted)[1]["step"] == 8


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("train.lr=1e-5", "train.lr was 0.003 and is now 1e-05"),
        ("train.loss=dpace", "train.loss was 'ce' and is now 'dpace'"),
        ("drafter.block_size=4", "drafter.block_size was 8 and is now 4"),
        ("drafter.num_anchors=3", "drafter.num_anchors was 8 and is now 3"),
        ("target.layer_ids=[1, 2]", "target.layer_ids was None and is now [1, 2]"),
        ("batching.max_tokens=2048", "batching.max_tokens was 1024 and is now 2048"),
        ("seed=1", "seed was 0 and is now 1"),
    ],
)
def test_other_settings_are_refused_by_name_and_nothing_is_touched(
    override: str, named: str, interrupted: Path, train: Callable[..., tuple[Finished, Path]]
) -> None:
    before = {path: path.stat().st_mtime_ns for path in interrupted.rglob("*")}
    done, _ = train(override)
    assert done.code == 2
    assert named in done.err
    assert "set them back to resume it" in done.err
    assert {path: path.stat().st_mtime_ns for path in interrupted.rglob("*")} == before


def test_several_differences_are_all_named(interrupted: Path, train: Callable[..., tuple[Finished, Path]]) -> None:
    done, _ = train("train.lr=1e-5", "seed=4")
    assert "seed was 0 and is now 4; train.lr was 0.003 and is now 1e-05" in done.err


def test_another_target_or_store_is_refused_by_its_content(
    interrupted: Path, train: Callable[..., tuple[Finished, Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("draftsmith.target.Target.fingerprint", lambda _self: "another")
    done, _ = train()
    assert done.code == 2
    assert "cannot be resumed with other settings: the target was" in done.err
    assert "is now 'another'" in done.err


def test_where_it_computes_and_what_it_saves_may_change(
    interrupted: Path, train: Callable[..., tuple[Finished, Path]]
) -> None:
    _, undisturbed = train(name="undisturbed")
    done, run = train('flow.target_devices=["cpu", "cpu"]', "checkpoint.every_steps=1", "eval.max_new_tokens=3")
    assert done.code == 0, done.err
    assert ending_of(run) == ending_of(undisturbed)


def test_a_finished_run_is_left_alone_and_says_how_to_go_on(
    interrupted: Path, train: Callable[..., tuple[Finished, Path]]
) -> None:
    assert train()[0].code == 0
    done, run = train("--resume")
    assert done.code == 2
    assert f"--from {run}" in done.err


def test_nothing_to_resume_is_an_error(train: Callable[..., tuple[Finished, Path]]) -> None:
    done, run = train("--resume")
    assert done.code == 2
    assert "holds no run that could be resumed" in done.err
    assert not run.exists()


@pytest.mark.parametrize("source", ["checkpoint", "run"])
def test_a_new_run_starts_from_the_weights_of_a_checkpoint_alone(
    source: str, interrupted: Path, train: Callable[..., tuple[Finished, Path]]
) -> None:
    checkpoint, _ = newest_checkpoint(interrupted)
    assert checkpoint is not None
    path = interrupted if source == "run" else checkpoint.directory
    done, run = train("--from", path, "train.max_steps=1", "train.lr=1e-9", "drafter.num_anchors=2", name="new")
    assert done.code == 0, done.err
    trained, record, _ = load_checkpoint(run)
    assert record["step"] == 1
    assert events_of(run, "start")[0]["weights_from"] == str(checkpoint.directory)
    for found, wanted in zip(trained.parameters(), checkpoint.drafter().parameters(), strict=True):
        assert found.allclose(wanted, atol=1e-6)


def test_weights_of_another_shape_are_refused_by_name(
    interrupted: Path, train: Callable[..., tuple[Finished, Path]]
) -> None:
    done, run = train("--from", interrupted, "drafter.num_layers=1", name="new")
    assert done.code == 2
    assert "num_hidden_layers was 2 and is now 1" in done.err
    assert not run.exists()


def test_a_sample_log_that_was_cut_is_not_gone_on_with(
    interrupted: Path, train: Callable[..., tuple[Finished, Path]]
) -> None:
    (interrupted / "samples.jsonl").write_text("", encoding="utf-8")
    done, _ = train()
    assert done.code == 2
    assert "samples.jsonl has 0 bytes" in done.err


def test_half_lines_and_rolled_back_lines_are_gone_after_resuming(
    interrupted: Path, train: Callable[..., tuple[Finished, Path]]
) -> None:
    for name in ("metrics", "samples"):
        with (interrupted / f"{name}.jsonl").open("a", encoding="utf-8") as file:
            file.write('{"step": 4, "seq": 3}\n{"step": 5, "se')
    with (interrupted / "events.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"event": "chec')
    _, undisturbed = train(name="undisturbed")
    done, run = train()
    assert done.code == 0, done.err
    assert ending_of(run) == ending_of(undisturbed)
    assert lines_of(run / "events.jsonl")[-1]["event"] == "end"


def test_leftovers_of_a_killed_process_are_swept_and_told(
    interrupted: Path, train: Callable[..., tuple[Finished, Path]]
) -> None:
    (interrupted / ".drafter.tmp-abcd1234").mkdir()
    (interrupted / ".store.partial-abcd1234").mkdir()
    (interrupted / "checkpoints" / ".step-000004.tmp-abcd1234").mkdir()
    (interrupted / ".mine").mkdir()
    done, run = train()
    assert done.code == 0, done.err
    assert not leftovers(run)
    assert (run / ".mine").exists()
    assert len(events_of(run, "swept")[0]["leftovers"]) == 3


def test_a_run_directory_in_use_is_refused_with_its_holder(
    settings_of_run: list[str], train: Callable[..., tuple[Finished, Path]], tmp_path: Path
) -> None:
    settings = [*settings_of_run, "train.max_steps=100000", f"run.dir={tmp_path / 'run'}"]
    training = Training(["train", TINY, *settings], tmp_path / "said.txt")
    try:
        assert wait_until(lambda: (tmp_path / "run" / "metrics.jsonl").exists()), training.said
        done, run = train("train.max_steps=100000")
        assert done.code == 2
        assert f"{run} is in use by another process" in done.err
        assert f'"pid": {training.pid}' in done.err
        assert f'"host": "{os.uname().nodename}"' in done.err
    finally:
        training.send(signal.SIGKILL)
        training.wait()


def test_two_symbolic_links_out_of_a_run_are_not_followed(
    train: Callable[..., tuple[Finished, Path]], tmp_path: Path
) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "run" / "checkpoints").symlink_to(tmp_path / "elsewhere")
    done, _ = train()
    assert done.code == 2
    assert "leads out of the run directory" in done.err


def test_a_clock_that_jumps_changes_nothing(
    train: Callable[..., tuple[Finished, Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, undisturbed = train(name="undisturbed")
    rng = random.Random(3)
    with monkeypatch.context() as patched:
        patched.setattr(time, "time", lambda: rng.uniform(0, 4e9))
        done, run = train("checkpoint.every_minutes=5")
    assert done.code == 0, done.err
    assert ending_of(run) == ending_of(undisturbed)


def test_minutes_that_were_spent_before_a_restart_are_spent(
    settings_of_run: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = [each for each in settings_of_run if "max_steps" not in each]
    config = tmp_path / "minutes.toml"
    config.write_text(TINY.read_text(encoding="utf-8").replace("max_steps = 150", "minutes = 60"), encoding="utf-8")
    command = ["train", config, *settings, "eval.num_prompts=0", "eval.num_timed=0", f"run.dir={tmp_path / 'run'}"]
    with monkeypatch.context() as patched:
        stop_after(patched, 3)
        assert draftsmith(*command).code == 143
    state = load_checkpoint(tmp_path / "run")[2] / "state.json"
    record = json.loads(state.read_text(encoding="utf-8"))
    assert 0 < record["seconds"] < 3600
    original = loop_module._Stopwatch

    def spent(seconds: float) -> Any:
        assert seconds == record["seconds"]
        return original(seconds + 3600)

    monkeypatch.setattr(loop_module, "_Stopwatch", spent)
    done = draftsmith(*command)
    assert done.code == 0, done.err
    assert load_checkpoint(tmp_path / "run")[1]["step"] == 3


def test_checkpoints_lists_and_verifies(interrupted: Path) -> None:
    shown = draftsmith("checkpoints", interrupted)
    assert (shown.code, "resume" in shown.out) == (0, True)
    listed = json.loads(draftsmith("checkpoints", interrupted, "--json").out)
    assert [(each["step"], each["problem"], each["use"]) for each in listed] == [(3, None, "resume")]
    newest = load_checkpoint(interrupted)[2]
    shutil.copytree(newest, newest.with_name("step-000009"))
    broken = draftsmith("checkpoints", interrupted, "--json")
    assert broken.code == 1
    assert "holds step 3; it was renamed" in json.loads(broken.out)[0]["problem"]


@pytest.mark.parametrize("summary", ['{"half', '{"held_out_acceptance": [1]}'])
def test_checkpoints_are_listed_whatever_else_of_the_run_is_damaged(summary: str, interrupted: Path) -> None:
    (interrupted / "summary.json").write_text(summary, encoding="utf-8")
    (interrupted / "checkpoints" / "step-mine.corrupt").mkdir()
    shown = draftsmith("checkpoints", interrupted, "--json")
    assert (shown.code, [each["step"] for each in json.loads(shown.out)]) == (0, [3]), shown.err


def test_checkpoints_of_no_run_is_an_error(tmp_path: Path) -> None:
    done = draftsmith("checkpoints", tmp_path)
    assert done.code == 2
    assert "is no run directory" in done.err
