"""Several processes train what one would have trained, whatever happens to them. gloo, fp32, one thread each."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from ranks import TWO, Train, assert_close, events_of, happens, hash_of, rows_of

from draftsmith.training import load_checkpoint
from helpers import CONFIGS, draftsmith


def test_P13_two_ranks_train_for_50_steps_what_one_does(settings: list[str], tmp_path: Path) -> None:
    """Measured on the way, too: the first rank measures, both note it."""
    runs = []
    for num in (1, 2):
        runs.append(tmp_path / str(num))
        longer = ["train.max_steps=50", "eval.num_prompts=2", "eval.every_steps=25", "eval.num_during=2"]
        more = [*settings, *longer, f"distributed.num_processes={num}", f"run.dir={runs[-1]}"]
        done = draftsmith("train", CONFIGS / "tiny-cpu.toml", *more)
        assert done.code == 0, done.err
    assert_close(*runs)
    assert (runs[0] / "samples.jsonl").read_bytes() == (runs[1] / "samples.jsonl").read_bytes()
    one, two = (rows_of(run) for run in runs)
    assert [row["step"] for row in one] == [row["step"] for row in two]
    assert [row.get("seq") for row in one] == [row.get("seq") for row in two]
    for first, second in zip(one, two, strict=True):
        assert first.get("loss", 0) == pytest.approx(second.get("loss", 0), rel=1e-3)
    summary = json.loads((runs[1] / "summary.json").read_text(encoding="utf-8"))
    assert set(summary["held_out_acceptance"]) == {"25", "50"}
    assert len(summary["flow"]["ranks"]["waited"]) == 2


def test_torchrun_with_one_rank_gives_the_bits_of_a_plain_run(alone: Path, settings: list[str], tmp_path: Path) -> None:
    command = "from draftsmith.cli import main; main()"
    arguments = ["train", CONFIGS / "tiny-cpu.toml", *settings, f"run.dir={tmp_path / 'run'}"]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=1", "--master-addr=127.0.0.1"]
    done = subprocess.run(
        [*torchrun, "--master-port=0", "--no-python", sys.executable, "-c", command, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert hash_of(tmp_path / "run") == hash_of(alone)


def test_P12_a_gradient_that_is_not_finite_on_one_rank_is_skipped_by_all(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoil = "next(state.drafter.parameters()).grad.fill_(float('nan'))"
    happens(monkeypatch, tmp_path, spoil, rank=1, step=3)
    done, run = train(TWO)
    assert done.code == 0, done.err
    drafter, record, _ = load_checkpoint(run)
    assert all(bool(parameter.isfinite().all()) for parameter in drafter.parameters())
    assert (record["step"], record["guards"]["num_skipped"]) == (8, 1)
    assert [event["step"] for event in events_of(run) if event["event"] == "not_finite"] == [4]


def test_a_rank_that_is_killed_costs_nothing_but_the_steps_since_the_last_checkpoint(
    train: Train, alone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed = happens(monkeypatch, tmp_path, "os.kill(os.getpid(), signal.SIGKILL)", rank=1, step=6)
    done, run = train(TWO, "checkpoint.every_steps=2")
    assert done.code == 0, done.err
    assert killed.exists()
    assert "rank 1 was killed by SIGKILL; all ranks start again from step" in done.err
    assert [event["event"] for event in events_of(run)].count("resume") == 1
    assert hash_of(run) == hash_of(alone)
    assert (run / "samples.jsonl").read_bytes() == (alone / "samples.jsonl").read_bytes()
    assert not [path for path in run.rglob("*") if ".tmp-" in path.name]


def test_deaths_without_progress_end_the_run_with_the_command_that_goes_on(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    happens(monkeypatch, tmp_path, "os.remove(marker); os.kill(os.getpid(), signal.SIGKILL)", rank=0, step=0)
    done, run = train(TWO, "distributed.max_restarts=0")
    assert done.code == 2
    assert "rank 0 was killed by SIGKILL; that was death 1 without a new checkpoint" in done.err
    assert f"draftsmith train {run} --resume" in done.err
    assert "Traceback" not in done.err


def test_a_signal_to_one_rank_stops_all_after_the_same_step_and_another_number_goes_on(
    train: Train, alone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    happens(monkeypatch, tmp_path, "os.kill(os.getpid(), signal.SIGTERM)", rank=1, step=3)
    done, run = train(TWO)
    assert done.code == 143, done.err
    assert "stopped by SIGTERM" in done.err
    assert load_checkpoint(run)[1]["step"] == 4
    done, run = train("--resume")
    assert done.code == 0, done.err
    assert_close(run, alone)
    assert (run / "samples.jsonl").read_bytes() == (alone / "samples.jsonl").read_bytes()


def test_an_error_of_one_rank_is_told_once_and_what_was_trained_is_saved(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = "from draftsmith.errors import DataError; raise DataError('sample 7 is unreadable')"
    happens(monkeypatch, tmp_path, failing, rank=1, step=5)
    done, run = train(TWO)
    assert done.code == 2
    assert done.err.count("sample 7 is unreadable") == 1
    assert "Traceback" not in done.err
    assert load_checkpoint(run)[1]["step"] == 5


def test_an_address_of_ray_is_ignored_without_it_and_that_is_said_once(train: Train) -> None:
    done, _ = train("ray.address=somewhere:6379", "train.max_steps=1")
    assert done.code == 0, done.err
    assert done.err.count("ray.address is 'somewhere:6379', which is ignored, because runtime is not ray") == 1


def test_ranks_end_with_whoever_started_them(settings: list[str], tmp_path: Path) -> None:
    command = "from draftsmith.cli import main; main()"
    run = tmp_path / "run"
    arguments = ["train", CONFIGS / "tiny-cpu.toml", *settings, TWO, "train.max_steps=100000", f"run.dir={run}"]
    starter = subprocess.Popen(
        [sys.executable, "-c", command, *map(str, arguments)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        wait_until(lambda: (run / "samples.jsonl").exists() and (run / "samples.jsonl").stat().st_size > 0)
        ranks = [int(number) for number in children_of(starter.pid)]
        assert len(ranks) == 2
    finally:
        starter.kill()
        starter.wait()
    began = time.monotonic()
    wait_until(lambda: not any(is_running(rank) for rank in ranks))
    assert time.monotonic() - began < 5


def children_of(parent: int) -> list[str]:
    return (Path("/proc") / str(parent) / "task" / str(parent) / "children").read_text(encoding="ascii").split()


def is_running(number: int) -> bool:
    try:
        return (Path("/proc") / str(number) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until(holds: Callable[[], bool], timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)
