"""The pipeline with real threads: order, retries, every kind of end, and nothing left running after any of them."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from itertools import islice

import pytest

from draftsmith.errors import StageError
from draftsmith.flow import Pipeline
from helpers import running

SHORT_S = 0.2


@pytest.fixture(autouse=True)
def P11_nothing_is_left_running() -> Iterator[None]:
    before = running()
    yield
    assert not running() - before


def waiting(seed: int, longest_s: float = 0.002) -> Callable[[int], int]:
    """A worker with its own speed. Waits on an event that nobody sets, instead of sleeping."""
    rng, never = random.Random(seed), threading.Event()

    def worker(item: int) -> int:
        never.wait(rng.random() * longest_s)
        return item * item

    return worker


def run(
    workers: list[Callable[[int], int]], *, num_items: int = 60, budget: int | None = None, items: int | None = None
) -> tuple[list[int], int]:
    with Pipeline("run", budget_bytes=budget, max_items=items) as pipeline:
        source = pipeline.source("plan", range(num_items))
        first = pipeline.stage("first", [lambda item: item + 1], source, bytes_of=lambda item: item % 7)
        second = pipeline.stage("second", workers, first, bytes_of=lambda item: item % 11, attempts=lambda _: 3)
        return list(second), pipeline.stats().peak_bytes


@pytest.mark.parametrize("num_workers", [1, 2, 4])
@pytest.mark.parametrize("budget", [None, 1, 20])
@pytest.mark.parametrize("items", [1, 3, 16])
def test_P4_P5_results_depend_on_neither_workers_nor_delays_nor_capacities(
    num_workers: int, budget: int | None, items: int
) -> None:
    got, peak = run([waiting(seed) for seed in range(num_workers)], budget=budget, items=items)
    assert got == [(item + 1) ** 2 for item in range(60)]
    if budget is not None:
        assert peak <= max(budget, 16)


@pytest.mark.parametrize("num_dying", [1, 2, 3])
def test_P3_workers_that_die_change_nothing(num_dying: int) -> None:
    rng = random.Random(num_dying)

    def dying(after: int) -> Callable[[int], int]:
        calls = iter(range(after))

        def worker(item: int) -> int:
            if next(calls, None) is None:
                raise OSError("device lost")
            return item * item

        return worker

    workers = [dying(rng.randrange(5)) for _ in range(num_dying)] + [waiting(seed) for seed in range(4 - num_dying)]
    assert run(workers)[0] == [(item + 1) ** 2 for item in range(60)]


def test_the_last_worker_tries_again_itself() -> None:
    seen: list[int] = []

    def worker(item: int) -> int:
        seen.append(item)
        if seen.count(item) < 3:
            raise OSError("not now")
        return item

    assert run([worker], num_items=3)[0] == [1, 2, 3]
    assert seen == [1, 1, 1, 2, 2, 2, 3, 3, 3]


def failing_at(seq: int, error: BaseException) -> Callable[[int], int]:
    def worker(item: int) -> int:
        if item == seq:
            raise error
        return item

    return worker


@pytest.mark.parametrize("stage", ["plan", "first", "second"])
@pytest.mark.parametrize(
    "error", [ValueError("boom"), SystemExit(3), KeyboardInterrupt()], ids=lambda e: type(e).__name__
)
def test_a_stage_that_raises_is_named_with_worker_item_and_cause(stage: str, error: BaseException) -> None:
    broken = failing_at(5, error)
    good = failing_at(-1, error)
    got = []
    with (  # noqa: PT012 - the error comes out of the loop
        pytest.raises(StageError, match=rf"stage {stage}, worker \d, item 5.*: {type(error).__name__}") as raised,
        Pipeline("run", describe=lambda item: f"sample {item}") as pipeline,
    ):
        out = pipeline.source("plan", map(broken if stage == "plan" else good, range(20)))
        for name in ("first", "second"):
            out = pipeline.stage(name, [broken if name == stage else good] * 2, out)
        for item in out:
            got.append(item)
    assert got == [0, 1, 2, 3, 4], "everything before the failure is delivered"
    assert (raised.value.stage, raised.value.item) == (stage, 5)
    assert raised.value.__cause__ is error
    if stage != "plan":
        assert "item 5 (sample 5)" in str(raised.value)


def test_an_item_that_fails_everywhere_stops_after_three_attempts() -> None:
    with pytest.raises(StageError, match="item 7 after 3 attempts: ValueError: bad"):
        run([failing_at(8, ValueError("bad")) for _ in range(4)])


def test_what_nobody_asked_for_cannot_fail() -> None:
    with Pipeline("run", max_items=8) as pipeline:
        out = pipeline.stage("first", [failing_at(3, ValueError())], pipeline.source("plan", range(20)))
        assert list(islice(out, 3)) == [0, 1, 2]


@pytest.mark.parametrize("num_taken", [0, 1, 7])
def test_P11_a_consumer_may_leave_early(num_taken: int) -> None:
    endless = iter(range(10**9))
    with Pipeline("run", budget_bytes=5) as pipeline:
        out = pipeline.stage("first", [waiting(0)] * 3, pipeline.source("plan", endless), bytes_of=lambda _: 2)
        assert list(islice(out, num_taken)) == [item * item for item in range(num_taken)]
    assert next(endless) < num_taken + 20, "no further ahead than needed"


def test_P11_an_error_of_the_consumer_passes_unchanged() -> None:
    with pytest.raises(ZeroDivisionError), Pipeline("run") as pipeline:  # noqa: PT012
        for _ in pipeline.stage("first", [waiting(0)], pipeline.source("plan", range(9))):
            raise ZeroDivisionError


@pytest.mark.parametrize("hanging", ["plan", "first", "second"])
def test_P10_a_stage_that_hangs_is_named_with_all_stacks(hanging: str) -> None:
    released, reported = threading.Event(), []

    def stuck_here(item: int) -> int:
        if item == 4:
            released.wait(30)
        return item

    stages = {
        name: stuck_here if name == hanging else failing_at(-1, ValueError()) for name in ("plan", "first", "second")
    }
    started = time.monotonic()
    with (  # noqa: PT012 - the error comes out of the loop
        pytest.raises(StageError, match=f"stage {hanging}, worker 0, item 4.*has not returned") as raised,
        Pipeline("run", watchdog_s=SHORT_S, on_stall=reported.append) as pipeline,
    ):
        out = pipeline.source("plan", map(stages["plan"], range(20)))
        for name in ("first", "second"):
            out = pipeline.stage(name, [stages[name]], out)
        try:
            for item in out:
                assert item < 4
        finally:
            released.set()
    assert time.monotonic() - started < 10 * SHORT_S
    assert "stuck_here" in raised.value.stacks
    assert reported == [raised.value]


def test_P10_a_consumer_that_hangs_is_stopped_where_it_is() -> None:
    reported: list[StageError] = []
    seen: list[int] = []

    def hangs_here() -> None:
        while True:
            time.sleep(0.001)

    with (  # noqa: PT012
        pytest.raises(StageError, match=r"stage training, item 4: has not returned for 0.2 s") as raised,
        Pipeline("run", watchdog_s=SHORT_S, on_stall=reported.append, consumer=("training", "")) as pipeline,
    ):
        for item in pipeline.stage("first", [waiting(0)], pipeline.source("plan", range(6))):
            seen.append(item)
            if len(seen) == 5:
                hangs_here()
    assert "hangs_here" in raised.value.stacks
    assert reported == [raised.value]
    assert len(seen) == 5


def test_P10_a_consumer_that_does_not_return_to_python_is_reported_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("draftsmith.flow.pipeline.AFTER_STALL_S", SHORT_S)
    stalled, hung = threading.Event(), threading.Event()
    with (  # noqa: PT012
        pytest.raises(StageError, match="stage consumer"),
        Pipeline(
            "run",
            watchdog_s=SHORT_S,
            on_stall=lambda _error: stalled.set(),
            on_hang=lambda _error: hung.set(),
        ) as pipeline,
    ):
        for _ in pipeline.stage("first", [waiting(0)], pipeline.source("plan", range(6))):
            assert hung.wait(30)  # one call that does not come back until somebody ends it
    assert stalled.is_set()


def test_P10_a_consumer_that_cleans_up_for_long_after_a_stall_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("draftsmith.flow.pipeline.AFTER_STALL_S", SHORT_S)
    hung: list[StageError] = []
    with pytest.raises(StageError), Pipeline("run", watchdog_s=SHORT_S, on_hang=hung.append) as pipeline:  # noqa: PT012
        try:
            for _ in pipeline.stage("first", [waiting(0)], pipeline.source("plan", range(6))):
                while True:
                    time.sleep(0.001)
        finally:
            time.sleep(3 * SHORT_S)
    assert hung == []


def test_P10_a_consumer_that_says_it_is_alive_is_no_stall() -> None:
    with Pipeline("run", watchdog_s=SHORT_S) as pipeline:
        for item in pipeline.stage("first", [waiting(0)], pipeline.source("plan", range(3))):
            for _ in range(6 if item else 0):
                time.sleep(SHORT_S / 2)
                pipeline.alive()


def test_P10_work_that_goes_on_is_no_stall_however_long_all_of_it_takes() -> None:
    with Pipeline("run", watchdog_s=SHORT_S) as pipeline:
        slow = pipeline.stage("first", [waiting(0, longest_s=SHORT_S / 2)], pipeline.source("plan", range(8)))
        assert len(list(slow)) == 8


def test_a_thread_that_does_not_stop_is_named_with_its_stack() -> None:
    released, entered = threading.Event(), threading.Event()

    def stuck_here(item: int) -> int:
        if item:
            entered.set()
            released.wait(30)
        return item

    with (  # noqa: PT012
        pytest.raises(StageError, match=r"still running after 0.05 s: run/first/0") as raised,
        Pipeline("run", stop_s=0.05) as pipeline,
    ):
        next(iter(pipeline.stage("first", [stuck_here], pipeline.source("plan", range(6)))))
        entered.wait(30)
    assert "stuck_here" in raised.value.stacks
    released.set()
    for thread in threading.enumerate():
        if thread.name.startswith("run/"):
            thread.join(10)


def test_P11_ctrl_c_while_waiting_leaves_nothing_behind() -> None:
    released = threading.Event()

    def worker(item: int) -> int:
        if item == 3:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)  # as a terminal does
            released.wait(30)
        return item

    with pytest.raises(KeyboardInterrupt), Pipeline("run") as pipeline:  # noqa: PT012
        try:
            for _ in pipeline.stage("first", [worker], pipeline.source("plan", range(9))):
                pass
        finally:
            released.set()


def test_P14_shares_of_every_stage_add_up_to_the_wall_time() -> None:
    with Pipeline("run") as pipeline:
        out = pipeline.stage("first", [waiting(0), waiting(1)], pipeline.source("plan", range(100)))
        started = None
        for _ in out:
            started = started or time.monotonic()
        stats = pipeline.stats()
    for stage in stats.stages:
        assert stage.num_done == 100
        assert stage.wall_s == pytest.approx(stats.wall_s * stage.num_workers, rel=1e-6)


def test_a_pipeline_is_a_row_and_says_so() -> None:
    with Pipeline("run") as pipeline:
        source = pipeline.source("plan", range(3))
        pipeline.stage("first", [waiting(0)], source)
        with pytest.raises(ValueError, match="must follow the stage that was added last"):
            pipeline.stage("second", [waiting(0)], source)
        with pytest.raises(RuntimeError, match="at its last stage"):
            iter(source)
    with pytest.raises(ValueError, match="budget_bytes of pipeline run is 0"):
        Pipeline("run", budget_bytes=0)
    with pytest.raises(RuntimeError, match="must be entered"):
        iter(Pipeline("run").source("plan", [1]))


def test_an_empty_plan_is_an_empty_stream() -> None:
    assert run([waiting(0)], num_items=0)[0] == []


def test_iterating_after_leaving_is_an_error_and_not_the_end_of_the_data() -> None:
    with Pipeline("run") as pipeline:
        stream = iter(pipeline.stage("first", [waiting(0)], pipeline.source("plan", range(9))))
        next(stream)
    with pytest.raises(RuntimeError, match="has been left"):
        next(stream)


def test_all_threads_are_ready_before_any_work_begins() -> None:
    log: list[str] = []
    with Pipeline("run") as pipeline:
        source = pipeline.source("plan", (log.append("work") or item for item in range(4)))
        stream = iter(pipeline.stage("first", [waiting(0)] * 3, source, begin=lambda: log.append("ready")))
        assert log == ["ready"] * 3
        assert list(stream) == [0, 1, 4, 9]
    assert log == ["ready"] * 3 + ["work"] * 4


def test_a_thread_that_cannot_begin_stops_the_pipeline() -> None:
    with pytest.raises(StageError, match="ZeroDivisionError"), Pipeline("run") as pipeline:
        list(pipeline.stage("first", [waiting(0)], pipeline.source("plan", range(4)), begin=lambda: 1 // 0))


def test_P10_who_is_in_a_hurry_does_not_wait_long_for_a_worker_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as a target on a machine that does not answer."""
    monkeypatch.setattr("draftsmith.flow.pipeline.AFTER_STALL_S", 0.1)
    gate, began = threading.Event(), time.monotonic()
    with pytest.raises(KeyboardInterrupt), Pipeline("run", stop_s=600) as pipeline:  # noqa: PT012
        next(iter(pipeline.stage("work", [lambda i: i and gate.wait(60)], pipeline.source("numbers", range(3)))))
        raise KeyboardInterrupt
    assert time.monotonic() - began < 5
    gate.set()
    for thread in threading.enumerate():
        if thread.name.startswith("run/"):
            thread.join(10)
