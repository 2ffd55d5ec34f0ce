"""The threads of a pipeline, and nothing else: each waits, takes work from the machine, does it, and reports.

One lock guards the machine. Every stage has one condition on that lock, so that only those are woken who can go on.
Nobody polls and nobody sleeps.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, runtime_checkable

from draftsmith.errors import WorkerLostError, first_line
from draftsmith.flow.channel import Work
from draftsmith.flow.machine import NOTHING, OVER, Need
from draftsmith.flow.timed import TimedMachine

Report = Callable[[float], Any]  # tells the machine, at a time, what came of an attempt


@runtime_checkable
class Returning(Protocol):
    """A worker that may be lost for a while, such as one in another process, which is started again."""

    def when_back(self, tell: Callable[[bool], None]) -> None:
        """After WorkerLostError: have `tell` called once, by any thread, when it can work again or is known not to."""


@dataclass(frozen=True)
class Stage:
    """One stage as it was asked for; see Pipeline.stage."""

    name: str
    workers: Sequence[Callable[[Any], Any]]
    bytes_of: Callable[[Any], int] | None
    max_items: int
    attempts: Callable[[Exception], int]
    begin: Callable[[], None]
    advice: str
    places: Callable[[], Sequence[str]] = tuple


class Crew:
    """One thread per worker. Stage 0 is the source: its worker raises StopIteration when there is nothing more."""

    def __init__(
        self,
        name: str,
        stages: Sequence[Stage],
        timed: TimedMachine,
        *,
        units_of: Callable[[Any], int] | None,
        on_change: Callable[[str], None],
        clock: Callable[[], float],
    ) -> None:
        self.lock = threading.Lock()
        self.timed = timed
        self.aborted: BaseException | None = None
        self._stages = stages
        self._units_of = units_of
        self._on_change = on_change
        self._clock = clock
        self._lost = threading.Condition(self.lock)  # threads of lost workers wait on it
        self._conditions = [threading.Condition(self.lock) for _ in range(len(stages) + 1)]
        self._asleep = [0] * (len(stages) + 1)  # threads of each stage that wait and have not been told to go on
        self._num_ready = 0
        self._is_open = False
        self._not_ready: BaseException | None = None
        # Every thread is waited for on leaving. Daemons only so that one which is stuck in a driver, and has been
        # named, cannot keep a failed process from ending.
        self._threads = [
            threading.Thread(target=self._live, args=(index, worker), name=f"{name}/{stage.name}/{worker}", daemon=True)
            for index, stage in enumerate(stages)
            for worker in range(len(stage.workers))
        ]

    def start(self) -> None:
        """Start all threads and wait until each has begun. Raises what any of them failed to begin with."""
        for thread in self._threads:
            thread.start()
        with self.lock:
            while self._num_ready < len(self._threads) and self._not_ready is None:
                self._conditions[-1].wait()
        if self._not_ready is not None:
            raise self._not_ready

    def open(self) -> None:
        """Let everybody work; time counts from here."""
        with self.lock:
            self._is_open = True
            self.timed.open(self._clock())
            self._wake_all()

    def next_item(self) -> Any:
        """Give back what the consumer took last, and wait for its next item.

        Raises StopIteration at the end, or what the stream was aborted with.
        """
        timed, consumer = self.timed, self.timed.machine.consumer
        with self.lock:
            now = self._clock()
            if timed.accounts[consumer].num_busy:
                timed.consumed(now)
            has_next, now = self._wait(consumer, now)
            item = timed.deliver(now) if has_next else None
            self._wake(now)
            if self.aborted is not None:
                raise self.aborted
            if not has_next:
                raise StopIteration
            return item

    def abort(self, error: BaseException) -> None:
        """The consumer gets this instead of its next item. Under the lock."""
        self.aborted = error
        self._tell(self.timed.machine.consumer, OVER)

    def leave(self, stop_s: float) -> list[threading.Thread]:
        """Let running work end and drop everything else; returns the threads that do not end in time.

        A signal that comes meanwhile is raised once they have ended.
        """
        with self.lock:
            self.timed.machine.leave()
            self._wake_all()
            self._lost.notify_all()
        deadline, interrupted = time.monotonic() + stop_s, None
        for thread in self._threads:
            while thread.is_alive() and (left := deadline - time.monotonic()) > 0:
                try:
                    thread.join(left)
                except KeyboardInterrupt as error:
                    interrupted = error
        if interrupted is not None:
            raise interrupted
        return [thread for thread in self._threads if thread.is_alive()]

    def _live(self, stage: int, worker: int) -> None:
        """The life of one thread."""
        try:
            self._stages[stage].begin()
        except BaseException as error:  # stage boundary
            self._not_ready = error
        with self.lock:
            self._num_ready += 1
            self._conditions[-1].notify_all()
            while not self._is_open and not self.timed.machine.left:
                self._conditions[stage].wait()
        self._work(stage, worker)
        while self._is_back(stage, worker):
            self._work(stage, worker)

    def _work(self, stage: int, worker: int) -> None:
        """Do what there is to do, until there will be nothing more or the worker is retired."""
        with self.lock:
            work = self._next_work(stage, worker)
        while work is not None:
            report = self._make(work) if stage == 0 else self._attempt(stage, work)
            with self.lock:
                report(self._clock())
                del report, work  # nothing is held while waiting: its credit has been given back
                work = self._next_work(stage, worker)

    def _is_back(self, stage: int, worker: int) -> bool:
        """Wait for a worker that was lost; false if it never works again while the pipeline runs, or was not lost."""
        channel, function = self.timed.machine.channels[stage], self._stages[stage].workers[worker]
        if worker not in channel.away or self.timed.machine.left:
            return False
        assert isinstance(function, Returning)
        try:
            function.when_back(partial(self._bring_back, stage, worker))
        except Exception:  # stage boundary: one that cannot be asked
            self._bring_back(stage, worker, able=False)
        with self.lock:
            while worker in channel.away and not self.timed.machine.left:
                self._lost.wait()
            return worker in channel.alive and not self.timed.machine.left

    def _bring_back(self, stage: int, worker: int, able: bool) -> None:
        with self.lock:
            if self.timed.bring_back(stage, worker, self._clock(), able=able):
                self._lost.notify_all()
                what = "is back" if able else "does not come back"
                self._on_change(f"stage {self._stages[stage].name}, worker {worker}, {what}")

    def _next_work(self, stage: int, worker: int) -> Work | None:
        """Wait for work; None when there will be none for this worker. Under the lock."""
        timed, work, now = self.timed, None, self._clock()
        if worker not in timed.machine.channels[stage].alive:
            timed.retire(stage, now)
        else:
            can_go_on, now = self._wait(stage, now)
            work = timed.take(stage, worker, now) if can_go_on else None
        self._wake(now)
        return work

    def _wait(self, stage: int, now: float) -> tuple[bool, float]:
        """Wait until `stage` can go on; false if it never will. And the time then. Under the lock."""
        while (need := self.timed.machine.need(stage)) is not NOTHING:
            if need is OVER or self.aborted is not None:
                return False, now
            self._asleep[stage] += 1
            self._wake(now)  # others hear first what has changed
            self._conditions[stage].wait()
            now = self._clock()
        return True, now

    def _attempt(self, stage: int, work: Work) -> Report:
        """One try at one item by a worker of any stage but the source."""
        try:
            result = self._stages[stage].workers[work.worker](work.item)
        except BaseException as error:  # stage boundary
            return self._failed(stage, work, error)
        return partial(self.timed.finish, stage, work, result)

    def _make(self, work: Work) -> Report:
        """One item of the source, or its end."""
        try:
            item = self._stages[0].workers[0](None)
            parts = [0 if stage.bytes_of is None else stage.bytes_of(item) for stage in self._stages]
            units = self._units_of(item) if self._units_of is not None else 0
        except StopIteration:
            return partial(self.timed.close, work)
        except BaseException as error:  # stage boundary
            return self._failed(0, work, error)
        return partial(self._admit, work, item, parts, units)

    def _admit(self, work: Work, item: Any, parts: Sequence[int], units: int, now: float) -> None:
        """Let an item in when its bytes fit; close when nobody wants more. Under the lock."""
        self.timed.want(parts, now)
        fits, now = self._wait(0, now)
        if fits:
            self.timed.admit(work, item, units, now)
        else:
            self.timed.close(work, now)

    def _failed(self, stage: int, work: Work, error: BaseException) -> Report:
        try:
            attempts = self._stages[stage].attempts(error) if isinstance(error, Exception) else 1
        except Exception as broken:  # stage boundary
            error, attempts = broken, 1
        return partial(self._count_failure, stage, work, error, attempts)

    def _count_failure(self, stage: int, work: Work, error: BaseException, attempts: int, now: float) -> None:
        lost = isinstance(error, WorkerLostError) and isinstance(self._stages[stage].workers[work.worker], Returning)
        excused = isinstance(error, WorkerLostError) and lost and not error.began
        if self.timed.fail(stage, work, error, now, attempts=attempts, lost=lost, excused=excused):
            places = self._stages[stage].places()
            who = f"worker {work.worker}" + (f" ({places[work.worker]})" if places else "")
            what = f"failed at item {work.seq}, which is tried again: {first_line(error)}"
            self._on_change(f"stage {self._stages[stage].name}, {who}, {what}")

    def _wake(self, now: float) -> None:
        if any(self._asleep):
            for stage, need in self.timed.wake(now, self._asleep):
                self._tell(stage, need)

    def _tell(self, stage: int, need: Need) -> None:
        """One thread of a stage that can go on, or all of them."""
        if need is NOTHING:
            self._asleep[stage] -= 1
            self._conditions[stage].notify()
        else:
            self._asleep[stage] = 0
            self._conditions[stage].notify_all()

    def _wake_all(self) -> None:
        for stage in range(len(self._conditions)):
            self._tell(stage, OVER)
