"""Random pipelines of real threads end as they must. Who sleeps and who is told is the threads' own business."""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Callable, Iterator

import pytest

from draftsmith.errors import StageError
from draftsmith.flow import Pipeline

WATCHDOG_S = 20.0  # a thread that nobody wakes is found, and fails the test


@pytest.fixture(autouse=True)
def _threads_change_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def worker(stage: int, fails: tuple[int, int] | None, flaky: set[tuple[int, int]]) -> Callable[[int], int]:
    """Fails always at `fails`, and once at what is in `flaky`: (stage, item)."""

    def work(item: int) -> int:
        if (stage, item) == fails:
            raise ValueError("always")
        if (stage, item) in flaky:
            flaky.discard((stage, item))
            raise RuntimeError("once")
        return item

    return work


def run(rng: random.Random) -> None:
    num_stages, num_items = rng.randint(1, 4), rng.randint(1, 40)
    places = [(stage, item) for stage in range(num_stages) for item in range(num_items)]
    fails = rng.choice(places) if rng.random() < 0.3 else None
    flaky = set(rng.sample(places, min(3, len(places)))) - {fails} if rng.random() < 0.4 else set()
    leaves_after = rng.randint(1, num_items) if rng.random() < 0.2 else None
    end = num_items if fails is None else fails[1]
    got: list[int] = []
    failure = ""
    with Pipeline(
        "random",
        max_items=rng.choice([None, 1, 2, 3]),
        budget_bytes=rng.choice([None, 1, 7, 30]),
        watchdog_s=WATCHDOG_S,
    ) as pipeline:
        out = pipeline.source("source", range(num_items))
        for stage in range(num_stages):
            workers = [worker(stage, fails, flaky) for _ in range(rng.randint(1, 4))]
            size = rng.choice([0, 1, 9])
            out = pipeline.stage(
                f"stage {stage}",
                workers,
                out,
                bytes_of=lambda _item, size=size: size,
                attempts=lambda error: 1 if isinstance(error, ValueError) else 3,
            )
        try:
            for item in out:
                got.append(item)
                if len(got) == leaves_after:
                    break
        except StageError as error:
            failure = str(error)
    assert got == list(range(end if leaves_after is None else min(end, leaves_after)))
    left_early = leaves_after is not None and leaves_after <= end
    assert ("ValueError: always" in failure) == (fails is not None and not left_early), failure
    assert not failure or fails is not None, failure
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("random/")]


@pytest.mark.parametrize("num_runs", [200, pytest.param(10_000, marks=[pytest.mark.long, pytest.mark.timeout(900)])])
def test_P6_random_pipelines_of_threads_deliver_in_order_fail_in_place_and_end(num_runs: int) -> None:
    for seed in range(num_runs):
        run(random.Random(seed))
