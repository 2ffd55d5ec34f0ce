"""What is expected of several ranks before they train."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from ranks import RANK

import draftsmith.run.launching as launching
from draftsmith.run.probing import report_of_ranks
from helpers import CONFIGS, draftsmith


def rank(tokens_per_s: float, sum_s: float = 0.0) -> dict[str, Any]:
    return {
        "lines": [],
        "tokens_per_s": tokens_per_s,
        "placement": "colocated",
        "tokens_per_batch": 1000.0,
        "sum_s": sum_s,
    }


def test_the_slow_rank_is_named_with_its_machine_and_what_the_others_lose() -> None:
    text = report_of_ranks([rank(1000), rank(500), rank(1000)], ["a", "b", "c"], grad_accum=3)
    assert "together: 1,500 tokens/s with steps of 3 batches, 3,000 tokens" in text
    assert "rank 1 on b is slow: the others wait 50 % of the time" in text
    assert "waiting for each other costs ranks 2 % of the time" in report_of_ranks(
        [rank(1000), rank(960)], ["a", "b"], grad_accum=2
    )


def test_the_slowest_sum_counts() -> None:
    text = report_of_ranks([rank(1000, 0.5), rank(1000, 1.0)], ["a", "b"], grad_accum=2)
    assert "together: 1,000 tokens/s" in text
    assert "summing up gradients takes 1,000 ms of a step (50%)" in text


def test_ranks_measure_together_and_refuse_what_training_would() -> None:
    done = draftsmith(
        "tune", CONFIGS / "tiny-cpu.toml", "distributed.num_processes=2", "train.grad_accum=2", "--batches", 1
    )
    assert done.code == 0, done.err
    assert done.out.count("cpu: target") == 2
    assert "together: " in done.out
    done = draftsmith("tune", CONFIGS / "tiny-cpu.toml", "distributed.num_processes=2", "train.grad_accum=3")
    assert done.code == 2
    assert "cannot be shared evenly by 2" in done.err


SLOW = """
import os, time
import draftsmith.run.probing as probing
original = probing.open_store
def open_store(*arguments):
    time.sleep(7 if os.environ["RANK"] == "1" else 0)
    return original(*arguments)
probing.open_store = open_store
"""


def test_ranks_wait_for_one_that_prepares_for_longer_than_any_sum_may_take(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launching, "COMMAND", (sys.executable, "-c", SLOW + RANK))
    settings = ("distributed.num_processes=2", "train.grad_accum=2", "flow.watchdog_s=5")
    done = draftsmith("tune", CONFIGS / "tiny-cpu.toml", *settings, "--batches", 1)
    assert done.code == 0, done.err
    assert "together: " in done.out


def test_what_a_rank_cannot_use_is_told_once() -> None:
    settings = ("distributed.num_processes=2", "train.grad_accum=2", "data.conversations=nowhere.jsonl")
    done = draftsmith("tune", CONFIGS / "tiny-cpu.toml", *settings)
    assert done.code == 2
    assert done.err.count("draftsmith: ") == 1
    assert "nowhere.jsonl" in done.err


@pytest.mark.parametrize("command", ["tune", "train"])
def test_torchrun_cannot_start_what_ray_starts(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "1"), ("LOCAL_RANK", "0"), ("LOCAL_WORLD_SIZE", "1")):
        monkeypatch.setenv(name, value)
    done = draftsmith(command, CONFIGS / "tiny-cpu.toml", "runtime=ray")
    assert done.code == 2
    assert "start this command without torchrun" in done.err
