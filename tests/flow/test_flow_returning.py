"""A worker that was lost works again when it is back; one that never is lets nobody wait."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from itertools import pairwise

import pytest

from draftsmith.errors import StageError, WorkerLostError
from draftsmith.flow import Pipeline


class Flaky:
    """Is lost at some of its calls; what it is told to tell then is in `tells`, unless it tells at once."""

    def __init__(
        self, *bad: int, began: bool = False, at_once: bool | None = None, gate: threading.Event | None = None
    ) -> None:
        self.done: list[int] = []
        self.tells: list[Callable[[bool], None]] = []
        self.num_calls = 0
        self._bad, self._began, self._at_once, self._gate = bad, began, at_once, gate

    def __call__(self, item: int) -> int:
        self.num_calls += 1
        if self.num_calls in self._bad:
            raise WorkerLostError("the lights went out\nand more", began=self._began)
        if self._gate is not None:
            assert self._gate.wait(5)
        self.done.append(item)
        return item

    def when_back(self, tell: Callable[[bool], None]) -> None:
        if self._at_once is None:
            self.tells.append(tell)
        else:
            tell(self._at_once)


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def through(num: int, workers: Sequence[Flaky], said: list[str] | None = None, **settings: float) -> list[int]:
    places = [f"room {number}" for number in range(len(workers))]
    told = [] if said is None else said
    with Pipeline("test", on_change=told.append, **settings) as pipeline:  # type: ignore[arg-type]
        source = pipeline.source("numbers", range(num))
        how = {"attempts": lambda _: 3, "bytes_of": lambda _: 1, "places": lambda: places}
        return list(pipeline.stage("work", workers, source, **how))  # type: ignore[arg-type]


def test_a_worker_that_is_back_at_once_goes_on() -> None:
    flaky, said = Flaky(1, 3, at_once=True), list[str]()
    assert through(200, [flaky], said) == flaky.done == list(range(200))
    lost = "stage work, worker 0 (room 0), failed at item {}, which is tried again: the lights went out"
    back = "stage work, worker 0, is back"
    assert said == [lost.format(0), back, lost.format(1), back]


def test_what_others_hold_up_a_worker_does_that_is_back() -> None:
    gate, results = threading.Event(), list[int]()
    back, slow = Flaky(1), Flaky(gate=gate)
    thread = threading.Thread(target=lambda: results.extend(through(20, [back, slow])))
    thread.start()
    until(lambda: back.tells)
    assert back.done == []
    back.tells[0](True)
    until(lambda: back.done)
    gate.set()
    thread.join(5)
    assert results == list(range(20))


def test_when_all_are_lost_the_first_that_is_back_does_everything() -> None:
    """Nobody tries again and again meanwhile."""
    results, both = list[int](), [Flaky(1), Flaky(1)]
    thread = threading.Thread(target=lambda: results.extend(through(20, both)))
    thread.start()
    until(lambda: both[0].tells and both[1].tells)
    time.sleep(0.05)
    assert [each.num_calls for each in both] == [1, 1]
    both[1].tells[0](True)
    thread.join(5)
    assert results == list(range(20))
    assert both[0].num_calls == 1


def test_losses_before_an_item_has_begun_are_none_of_its_attempts() -> None:
    often = Flaky(*range(1, 11), at_once=True)
    assert through(1, [often]) == [0]
    assert often.num_calls == 11


def test_a_worker_that_is_back_and_lost_for_ever_is_given_up() -> None:
    always = Flaky(*range(1, 1000), at_once=True)
    with pytest.raises(StageError, match="after 3 attempts"):
        through(1, [always])
    assert always.num_calls == 103


class Unheard(Flaky):
    """Cannot even be asked when it is back."""

    def when_back(self, tell: Callable[[bool], None]) -> None:
        raise RuntimeError("nobody is there")


def test_one_that_cannot_be_asked_does_not_come_back() -> None:
    said = list[str]()
    with pytest.raises(StageError, match="after 3 attempts: WorkerLostError"):
        through(5, [Unheard(*range(1, 99))], said)
    assert "stage work, worker 0, does not come back" in said


@pytest.mark.parametrize("settings", [{"began": True, "at_once": True}, {"at_once": False}], ids=["poison", "never"])
def test_an_item_at_which_workers_are_lost_is_tried_three_times_and_so_is_one_whose_workers_never_return(
    settings: dict[str, bool],
) -> None:
    with pytest.raises(StageError, match=r"item 0 .*after 3 attempts: WorkerLostError: the lights went out"):
        through(5, [Flaky(*range(1, 99), **settings) for _ in range(2)])  # type: ignore[arg-type]


def test_a_worker_that_is_told_of_too_late_or_twice_changes_nothing() -> None:
    gate, said, before = threading.Event(), list[str](), threading.active_count()
    lost, other = Flaky(1, 2), Flaky(gate=gate)
    results = list[int]()
    thread = threading.Thread(target=lambda: results.extend(through(20, [lost, other], said)))
    thread.start()
    until(lambda: lost.tells)
    lost.tells[0](True)
    lost.tells[0](True)
    until(lambda: len(lost.tells) == 2)
    assert said.count("stage work, worker 0, is back") == 1
    gate.set()
    thread.join(5)
    assert results == other.done == list(range(20))
    assert threading.active_count() == before
    lost.tells[1](True)
    assert said.count("stage work, worker 0, is back") == 1


def test_P10_a_consumer_that_hangs_while_all_workers_are_lost_is_interrupted() -> None:
    hung = pytest.raises(StageError, match="stage consumer, item 0: has not returned")
    with hung, Pipeline("test", watchdog_s=0.1) as p:
        for _ in p.stage("work", [Flaky(2)], p.source("numbers", range(5)), attempts=lambda _: 3):
            until(lambda: False)


def test_P10_a_stage_whose_workers_stay_away_is_named() -> None:
    with pytest.raises(StageError, match=r"stage work: all its workers are lost, and none is back after 0\.1 s"):
        through(50, [Flaky(1), Flaky(1)], watchdog_s=0.1, budget_bytes=3)  # so the source waits, too


def test_time_away_counts_for_nobody() -> None:
    """A worker that is lost is neither busy nor waiting; once it is back it is."""
    back = Flaky(1)
    with Pipeline("test") as pipeline:
        source = pipeline.source("numbers", range(4000))
        items = iter(pipeline.stage("work", [back, Flaky()], source, attempts=lambda _: 3, max_items=4))
        until(lambda: next(items) >= 0 and back.tells)
        readings = [pipeline.stats()]
        for happens in (lambda: time.sleep(0.1), lambda: back.tells[0](True), lambda: time.sleep(0.1)):
            happens()
            readings.append(pipeline.stats())
    away, _, there = (
        (after.stages[1].wall_s - before.stages[1].wall_s) / (after.wall_s - before.wall_s)
        for before, after in pairwise(readings)
    )
    assert (away, there) == (pytest.approx(1), pytest.approx(2))
