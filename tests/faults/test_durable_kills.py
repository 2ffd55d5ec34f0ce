"""Kill it anywhere, resume it exactly: real processes, hit from outside at random moments."""

from __future__ import annotations

import itertools
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from chaos import Ending, ending_of, leftovers, lines_of, processes_of_group, wait_until

from draftsmith.config import load_config
from draftsmith.data import TokenStore
from draftsmith.run.opening import plan_epoch, specs_of
from helpers import CONFIGS
from processes import Executed, Training

SEED = int(os.environ.get("CHAOS_SEED", "6"))
NUM_STEPS = 20
Start = Callable[[Path], Training]


@pytest.fixture(scope="module")
def settings(conversations: Path) -> list[str]:
    """Steps of two batches, both optimisers, a redrawn head, checkpoints all the time, hidden states by two workers."""
    return [
        f"data.conversations={conversations}",
        "data.holdout=0.15",
        "batching.max_tokens=256",
        "drafter.num_layers=1",
        "drafter.num_anchors=2",
        f"train.max_steps={NUM_STEPS}",
        "train.grad_accum=2",
        "train.optimizer=muon",
        "train.head=sampled",
        "train.num_negatives=10",
        "checkpoint.every_steps=3",
        "checkpoint.every_minutes=0",
        'flow.target_devices=["cpu", "cpu"]',
        "eval.num_prompts=0",
        "eval.num_timed=0",
    ]


@pytest.fixture(scope="module")
def start(settings: list[str], tmp_path_factory: pytest.TempPathFactory) -> Start:
    outputs = (tmp_path_factory.mktemp("said") / f"{number}.txt" for number in itertools.count())

    def begin(run: Path) -> Training:
        return Training(["train", CONFIGS / "tiny-cpu.toml", *settings, f"run.dir={run}"], next(outputs))

    return begin


@pytest.fixture(scope="module")
def uninterrupted(start: Start, tmp_path_factory: pytest.TempPathFactory) -> tuple[Ending, float]:
    """How a run ends that nobody disturbs, and how long it takes."""
    run = tmp_path_factory.mktemp("runs") / "uninterrupted"
    assert Training(["--help"], run.parent / "help.txt").wait() == 0  # the libraries are imported now
    training = start(run)
    assert wait_until(lambda: holds(training, run)), training.said
    begun = time.monotonic()
    assert training.wait() == 0, training.said
    return ending_of(run), time.monotonic() - begun


def planned_lines(run: Path) -> list[dict[str, object]]:
    """The sample log as the plan alone gives it."""
    config = load_config(run / "config.toml")
    store = TokenStore.open(run / "store")
    specs = (spec for epoch in itertools.count() for spec in specs_of(plan_epoch(config, store, epoch=epoch), store))
    return [
        {"step": index // 2 + 1, "epoch": spec.epoch, "seq": spec.seq, "samples": list(spec.samples)}
        for index, spec in enumerate(itertools.islice(specs, 2 * NUM_STEPS))
    ]


def kill_until_done(start: Start, run: Path, rng: random.Random, whole_s: float) -> int:
    """Start and kill at random moments until one start lives to the end; returns kills.

    Three of four moments lie after the process has taken the run directory, for importing libraries takes most of the
    time and says least.
    """
    for kills in itertools.count():
        training = start(run)
        if rng.random() < 0.75:
            wait_until(lambda t=training: t.wait(0) is not None or holds(t, run))
        code = training.wait(rng.uniform(0, whole_s))
        if code is not None:
            assert code == 0 or "which is finished" in training.said, training.said
            return kills
        training.send(signal.SIGKILL)
        training.wait()
        assert not processes_of_group(training.pid)
    raise AssertionError


def holds(training: Training, run: Path) -> bool:
    """Has this process taken the run directory?"""
    return (run / "LOCK").exists() and f'"pid": {training.pid},' in (run / "LOCK").read_text(encoding="utf-8")


def check_kills(start: Start, wanted: Ending, whole_s: float, tmp_path: Path, num_kills: int) -> None:
    rng, total = random.Random(SEED), 0
    shared_memory = set(os.listdir("/dev/shm"))
    for number in itertools.count():
        run = tmp_path / f"run-{number}"
        total += kill_until_done(start, run, rng, whole_s)
        assert ending_of(run) == wanted, f"seed {SEED}, run {number}, {total} kills"
        assert lines_of(run / "samples.jsonl") == planned_lines(run)
        assert not leftovers(run)
        assert set(os.listdir("/dev/shm")) <= shared_memory
        if total >= num_kills:
            return


@pytest.mark.timeout(600)
def test_P1_P2_P11_killed_at_random_moments_and_resumed_it_is_bit_identical_to_the_uninterrupted_run(
    start: Start, uninterrupted: tuple[Ending, float], tmp_path: Path
) -> None:
    check_kills(start, *uninterrupted, tmp_path, num_kills=12)


@pytest.mark.long
@pytest.mark.timeout(1500)
def test_P1_P2_P11_fifty_kills_of_newly_executed_processes(
    settings: list[str], uninterrupted: tuple[Ending, float], tmp_path: Path
) -> None:
    def start_anew(run: Path) -> Training:
        return Executed(["train", CONFIGS / "tiny-cpu.toml", *settings, f"run.dir={run}"], tmp_path / "said.txt")

    check_kills(start_anew, *uninterrupted, tmp_path, num_kills=50)


def stop_and_resume(
    start: Start, wanted: Ending, run: Path, *, wait_s: float, number: signal.Signals, limit_s: float
) -> bool:
    """Signal once after `wait_s`, then go on to the end; returns whether the signal met a run that trained."""
    training = start(run)
    if training.wait(wait_s) is not None:
        return False
    training.send(number)
    asked = time.monotonic()
    code = training.wait()
    took = time.monotonic() - asked
    assert code in (0, 128 + number), training.said  # 0: it was about to end by itself
    assert took < limit_s
    assert not processes_of_group(training.pid)
    assert not leftovers(run)
    events = lines_of(run / "events.jsonl") if (run / "events.jsonl").exists() else []
    trained = [line for line in events if line["event"] == "interrupted"]
    if trained:
        newest = max(path.name for path in (run / "checkpoints").glob("step-??????"))
        assert newest == f"step-{trained[-1]['step']:06d}"
        steps = [line["step"] for line in lines_of(run / "samples.jsonl")]
        assert not steps or steps[-1] == trained[-1]["step"], "every step that was trained is saved"
    again = start(run)
    assert again.wait() == 0 or "which is finished" in again.said, again.said
    assert ending_of(run) == wanted
    return bool(trained)


def limit_s() -> float:
    """Five seconds; more where other work keeps all cores busy, for then steps are not what takes the time."""
    return 5.0 if os.getloadavg()[0] < 2 * (os.cpu_count() or 1) else 60.0


@pytest.mark.timeout(600)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_P9_P2_P11_a_signal_at_a_random_moment_saves_and_exits_and_no_step_is_lost(
    number: signal.Signals, start: Start, uninterrupted: tuple[Ending, float], tmp_path: Path
) -> None:
    wanted, whole_s = uninterrupted
    rng = random.Random(SEED + number)
    hits = [
        stop_and_resume(
            start, wanted, tmp_path / str(case), wait_s=rng.uniform(0, whole_s), number=number, limit_s=limit_s()
        )
        for case in range(2)
    ]
    assert len(hits) == 2


@pytest.mark.long
@pytest.mark.timeout(1500)
def test_P9_P2_P11_twenty_sigterms(start: Start, uninterrupted: tuple[Ending, float], tmp_path: Path) -> None:
    wanted, whole_s = uninterrupted
    rng = random.Random(SEED)
    hits = [
        stop_and_resume(
            start,
            wanted,
            tmp_path / str(case),
            wait_s=rng.uniform(0, whole_s),
            number=signal.SIGTERM,
            limit_s=limit_s(),
        )
        for case in range(20)
    ]
    assert sum(hits) >= 5, f"seed {SEED}: most signals must meet a training run, or they prove nothing"


@pytest.mark.timeout(600)
def test_P9_P11_a_second_signal_ends_it_at_once_and_the_run_can_still_be_resumed(
    start: Start, uninterrupted: tuple[Ending, float], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    training = start(run)
    assert wait_until(
        lambda: (run / "samples.jsonl").exists() and (run / "samples.jsonl").read_bytes().count(b"\n") > 8
    )
    for _ in range(2):
        training.send(signal.SIGTERM)
    assert training.wait(60) in (130, 143), training.said
    assert "Traceback" not in training.said
    assert not processes_of_group(training.pid)
    again = start(run)
    assert again.wait() == 0, again.said
    assert ending_of(run) == uninterrupted[0]
