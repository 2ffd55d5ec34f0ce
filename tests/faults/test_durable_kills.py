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
from chaos import Ending, Executed, Training, ending_of, leftovers, lines_of, processes_of_group

from draftsmith.config import load_config
from draftsmith.data import TokenStore
from draftsmith.run.opening import plan_epoch, specs_of
from helpers import CONFIGS

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
    begun = time.monotonic()
    training = start(run)
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
    """Start and kill at random moments of what a whole run takes, until one start lives to the end; returns kills."""
    for kills in itertools.count():
        training = start(run)
        code = training.wait(rng.uniform(0, whole_s))
        if code is not None:
            assert code == 0 or "which is finished" in training.said, training.said
            return kills
        training.send(signal.SIGKILL)
        training.wait()
        assert not processes_of_group(training.pid)
    raise AssertionError


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

    begun = time.monotonic()
    training = start_anew(tmp_path / "timed")
    assert training.wait() == 0, training.said
    check_kills(start_anew, uninterrupted[0], time.monotonic() - begun, tmp_path, num_kills=50)
