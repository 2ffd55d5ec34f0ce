"""A drafter that is spread over ranks learns what a whole one does, and its checkpoints do not tell. gloo, fp32."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ranks import TWO, Train, assert_close, events_of, happens, rows_of

import draftsmith.run.loop as loop
from draftsmith.training import TrainState, load_checkpoint
from helpers import CONFIGS, draftsmith

SHARDED = "distributed.sharding=fsdp2"
ACCUMULATED = "train.grad_accum=4"  # two batches of each rank: one pass without sums, one with


def stopping(original: Callable[..., Any], *, step: int) -> Callable[..., Any]:
    """This step is the last one before a signal."""

    def take_step(state: TrainState, *arguments: Any, **settings: Any) -> Any:
        metrics = original(state, *arguments, **settings)
        if state.step == step:
            signal.raise_signal(signal.SIGTERM)
        return metrics

    return take_step


def assert_same_training(one: Path, other: Path) -> None:
    assert_close(one, other)
    assert (one / "samples.jsonl").read_bytes() == (other / "samples.jsonl").read_bytes()


def test_a_drafter_in_two_parts_learns_in_50_steps_what_a_whole_one_does(train: Train) -> None:
    """Muon for matrices, AdamW for vectors. Measured on the way, too: rank 0 puts it together for that."""
    muon = ["train.optimizer=muon", "train.muon_lr=1e-3"]  # what Muon makes of rounding grows with its rate
    longer = ["train.max_steps=50", "eval.num_prompts=2", "eval.every_steps=25", "eval.num_during=2", *muon]
    (done, one), (also, two) = train(*longer, name="one"), train(*longer, TWO, SHARDED, name="two")
    assert (done.code, also.code) == (0, 0), done.err + also.err
    assert_same_training(one, two)
    for first, second in zip(rows_of(one), rows_of(two), strict=True):
        assert (first["step"], first.get("seq")) == (second["step"], second.get("seq"))
        assert first.get("loss", 0) == pytest.approx(second.get("loss", 0), rel=1e-3)
        assert first.get("grad_norm", 0) == pytest.approx(second.get("grad_norm", 0), rel=1e-3)
    summary = json.loads((two / "summary.json").read_text(encoding="utf-8"))
    assert set(summary["held_out_acceptance"]) == {"25", "50"}
    assert (two / "drafter" / "model.safetensors").stat().st_size == (
        one / "drafter" / "model.safetensors"
    ).stat().st_size


def test_torchrun_with_two_ranks_and_an_end_in_the_middle_of_a_round(settings: list[str], tmp_path: Path) -> None:
    """The last step has three batches, not four: a round of two, and one batch for two ranks."""
    text = (CONFIGS / "tiny-cpu.toml").read_text(encoding="utf-8").replace("max_steps = 150", "epochs = 21")
    (tmp_path / "epochs.toml").write_text(text, encoding="utf-8")
    common = [each for each in settings if not each.startswith("train.max_steps")]
    arguments = ["train", tmp_path / "epochs.toml", *common, ACCUMULATED]
    one, two = tmp_path / "one", tmp_path / "two"
    done = draftsmith(*arguments, f"run.dir={one}")
    assert done.code == 0, done.err
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone"]
    ran = subprocess.run(
        [
            *torchrun,
            "--no-python",
            Path(sys.executable).with_name("draftsmith"),
            *arguments,
            SHARDED,
            f"run.dir={two}",
        ],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    num_batches = len((one / "samples.jsonl").read_text(encoding="utf-8").splitlines())
    assert num_batches % 4 == 3
    assert_same_training(one, two)


def test_P12_a_part_of_a_gradient_that_is_not_finite_is_skipped_by_all(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoil = "next(state.drafter.parameters()).grad.to_local().fill_(float('nan'))"
    happens(monkeypatch, tmp_path, spoil, rank=1, step=3)
    done, run = train(TWO, SHARDED)
    assert done.code == 0, done.err
    drafter, record, _ = load_checkpoint(run)
    assert all(bool(parameter.isfinite().all()) for parameter in drafter.parameters())
    assert (record["step"], record["guards"]["num_skipped"]) == (8, 1)
    assert [event["step"] for event in events_of(run) if event["event"] == "not_finite"] == [4]


def test_a_run_of_one_process_goes_on_in_two_parts_and_survives_the_death_of_one(
    train: Train, alone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(loop, "take_step", stopping(loop.take_step, step=3))
        done, run = train()
    assert (done.code, load_checkpoint(run)[1]["step"]) == (143, 3), done.err
    killed = happens(monkeypatch, tmp_path, "os.kill(os.getpid(), signal.SIGKILL)", rank=1, step=6)
    done, run = train(TWO, SHARDED, "checkpoint.every_steps=2", "--resume")
    assert done.code == 0, done.err
    assert killed.exists()
    assert "rank 1 was killed by SIGKILL; all ranks start again from step" in done.err
    assert "Traceback" not in done.err
    assert [event["event"] for event in events_of(run)].count("resume") == 2
    assert_same_training(run, alone)


def test_an_error_of_one_rank_falls_back_to_the_last_checkpoint_from_which_one_process_goes_on(
    train: Train, alone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = "from draftsmith.errors import DataError; raise DataError('sample 7 is unreadable')"
    happens(monkeypatch, tmp_path, failing, rank=0, step=5)
    done, run = train(TWO, SHARDED, "checkpoint.every_steps=2")
    assert done.code == 2
    assert done.err.count("sample 7 is unreadable") == 1
    lost = "step 5 cannot be saved, because each rank has a part of it; resume from step 4"
    assert lost in [event.get("text") for event in events_of(run)]
    assert "Traceback" not in done.err
    assert load_checkpoint(run)[1]["step"] == 4
    done, run = train(SHARDED, "--resume")
    assert done.code == 0, done.err
    assert_same_training(run, alone)


@pytest.mark.long
@pytest.mark.parametrize(
    "ways",
    [((2, "none"), (4, "fsdp2"), (2, "fsdp2")), ((4, "fsdp2"), (2, "none"), (2, "fsdp2"))],
    ids=["first", "last"],
)
def test_every_way_to_share_a_drafter_goes_on_from_every_other_and_at_last_in_one_process(
    ways: tuple[tuple[int, str], ...], train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    common = [ACCUMULATED, "batching.max_tokens=384"]  # batches enough for four ranks
    done, whole = train(*common, name="whole")
    assert done.code == 0, done.err
    for number, (num, sharding) in enumerate(ways):
        marker = happens(monkeypatch, tmp_path, "os.kill(os.getpid(), signal.SIGTERM)", rank=1, step=2 * number)
        marker.unlink(missing_ok=True)
        own = [f"distributed.num_processes={num}", f"distributed.sharding={sharding}"]
        done, run = train(*common, *own)
        assert (done.code, load_checkpoint(run)[1]["step"]) == (143, 2 * number + 1), done.err
    done, run = train(*common, "--resume")
    assert done.code == 0, done.err
    assert_same_training(run, whole)
