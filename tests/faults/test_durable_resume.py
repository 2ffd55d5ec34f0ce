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
from chaos import Training, ending_of, leftovers, lines_of, wait_until

import draftsmith.run.judging as judging_module
import draftsmith.run.loop as loop_module
import draftsmith.training.checkpoint as checkpoint_module
from draftsmith.evaluation import ServedAcceptance
from draftsmith.export import read_drafter
from draftsmith.observe.lines import LineLog
from draftsmith.training import load_checkpoint, newest_checkpoint, params_sha256
from helpers import CONFIGS, Finished, draftsmith

TINY = CONFIGS / "tiny-cpu.toml"


@pytest.fixture
def train(settings_of_run: list[str], tmp_path: Path) -> Callable[..., tuple[Finished, Path]]:
    """Train in one directory with these further arguments, without measuring at the end."""

    def run(*arguments: object, name: str = "run") -> tuple[Finished, Path]:
        settings = [*settings_of_run, "eval.num_prompts=0", "eval.num_timed=0", f"run.dir={tmp_path / name}"]
        return draftsmith("train", TINY, *settings, *arguments), tmp_path / name

    return run


def stop_after(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    original = loop_module.train_step

    def stopping(state: Any, *arguments: Any, **settings: Any) -> Any:
        metrics = original(state, *arguments, **settings)
        if state.step == step and not state.pending.num_batches:
            os.kill(os.getpid(), signal.SIGTERM)
        return metrics

    monkeypatch.setattr(loop_module, "train_step", stopping)


@pytest.fixture
def interrupted(train: Callable[..., tuple[Finished, Path]]) -> Path:
    with pytest.MonkeyPatch.context() as patched:
        stop_after(patched, 3)
        done, run = train()
    assert done.code == 143, done.err
    return run


def events_of(run: Path, kind: str) -> list[dict[str, Any]]:
    return [line for line in lines_of(run / "events.jsonl") if line["event"] == kind]


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


def test_checkpoints_of_no_run_is_an_error(tmp_path: Path) -> None:
    done = draftsmith("checkpoints", tmp_path)
    assert done.code == 2
    assert "is no run directory" in done.err


def test_lines_that_a_full_disk_refuses_wait_and_are_written_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = LineLog(tmp_path / "lines.jsonl")
    log.append({"n": 1})
    original, full = os.write, [True]

    def write(file: int, text: bytes) -> int:
        if full[0]:
            raise OSError(28, "No space left on device")
        return original(file, text[:5])

    monkeypatch.setattr(os, "write", write)
    log.append({"n": 2})
    log.append({"n": 3})
    with pytest.raises(OSError, match="No space left"):
        log.sync()
    assert log.num_bytes == 27
    full[0] = False
    log.sync()
    log.close()
    assert lines_of(tmp_path / "lines.jsonl") == [{"n": 1}, {"n": 2}, {"n": 3}]


@pytest.mark.parametrize("torn", [b"", b'{"n": 2', b'{"n": 2}\n{"n"', b"x" * 200_000])
def test_a_half_line_at_the_end_is_cut_off_when_a_log_is_opened(torn: bytes, tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_bytes(b'{"n": 1}\n' + torn)
    log = LineLog(path)
    log.append({"n": 9})
    log.close()
    assert [line["n"] for line in lines_of(path)] in ([1, 9], [1, 2, 9])


def full_disk(monkeypatch: pytest.MonkeyPatch, steps: range) -> None:
    """These steps cannot be saved."""
    original = checkpoint_module.save_file

    def save(tensors: Any, path: Path) -> None:
        if any(f".step-{step:06d}" in str(path) for step in steps):
            raise OSError(28, "No space left on device")
        original(tensors, path)

    monkeypatch.setattr(checkpoint_module, "save_file", save)


SAVING = ("checkpoint.every_steps=2", "checkpoint.every_minutes=0")


def test_a_disk_that_is_full_for_a_while_is_an_alarm_and_a_retry(
    train: Callable[..., tuple[Finished, Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    full_disk(monkeypatch, range(4, 5))
    done, run = train(*SAVING)
    assert done.code == 0, done.err
    assert "step 4 could not be saved" in done.err
    assert "No space left on device" in done.err
    assert "so far step 2 is saved" in done.err
    assert [event["step"] for event in events_of(run, "checkpoint_failed")] == [4]
    assert load_checkpoint(run)[1]["step"] == 8


def test_a_disk_that_stays_full_stops_the_run_when_two_intervals_are_lost_and_it_goes_on_later(
    train: Callable[..., tuple[Finished, Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, undisturbed = train(*SAVING, name="undisturbed")
    with monkeypatch.context() as patched:
        full_disk(patched, range(3, 99))
        done, run = train(*SAVING)
    assert done.code == 2
    assert "No space left on device" in done.err
    assert "step 2 has been saved for two intervals, so training stops at step" in done.err
    assert load_checkpoint(run)[1]["step"] == 2
    done, run = train(*SAVING)
    assert done.code == 0, done.err
    assert ending_of(run) == ending_of(undisturbed)
