"""The threads of a pipeline, and nothing else: each waits, takes work from the machine, does it, and reports.

One lock guards the machine. Every stage has one condition on that lock, so that only those are woken who can go on.
Nobody polls and nobody sleeps.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from draftsmith.flow.channel import Work
from draftsmith.flow.machine import Need
from draftsmith.flow.timed import TimedMachine


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


class Crew:
    """One thread per worker. Stage 0 is the source: its worker raises StopIteration when there is nothing more."""

    def __init__(
        self,
        name: str,
        stages: Sequence[Stage],
        timed: TimedMachine,
        *,
        units_of: Callable[[Any], int] | None,
        clock: Callable[[], float],
    ) -> None:
        self.lock = threading.Lock()
        self.timed = timed
        self.aborted: BaseException | None = None
        self._stages = stages
        self._units_of = units_of
        self._clock = clock
        self._conditions = [threading.Condition(self.lock) for _ in range(len(stages) + 1)]
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

    def consumed(self) -> None:
        """The consumer is done with what it took last."""
        with self.lock:
            self.timed.consumed(self._clock())
            self._wake()

    def next_item(self) -> Any:
        """Wait for the consumer's next item. Raises StopIteration at the end, or what the stream was aborted with."""
        timed, consumer = self.timed, self.timed.machine.consumer
        with self.lock:
            while self.aborted is None and (need := timed.machine.need(consumer)) is not Need.NOTHING:
                if need is Need.OVER:
                    raise StopIteration
                self._conditions[consumer].wait()
            if self.aborted is not None:
                raise self.aborted
            item = timed.deliver(self._clock())
            self._wake()
            return item

    def abort(self, error: BaseException) -> None:
        """The consumer gets this instead of its next item. Under the lock."""
        self.aborted = error
        self._conditions[-1].notify_all()

    def leave(self, stop_s: float) -> list[threading.Thread]:
        """Let running work end and drop everything else; returns the threads that do not end in time.

        A signal that comes meanwhile is raised once they have ended.
        """
        with self.lock:
            self.timed.machine.leave()
            self._wake_all()
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
        while (work := self._next_work(stage, worker)) is not None:
            if stage == 0:
                self._feed(work)
            else:
                self._attempt(stage, work)
            del work  # nothing is held while waiting: its credit has been given back

    def _next_work(self, stage: int, worker: int) -> Work | None:
        """Wait for work; None when there will be none for this worker."""
        timed = self.timed
        with self.lock:
            if worker not in timed.machine.channels[stage].alive:
                timed.retire(stage, self._clock())
                return None
            while (need := timed.machine.need(stage)) is not Need.NOTHING:
                if need is Need.OVER:
                    return None
                self._conditions[stage].wait()
            work = timed.take(stage, worker, self._clock())
            self._wake()
            return work

    def _attempt(self, stage: int, work: Work) -> None:
        """One try at one item by a worker of any stage but the source."""
        try:
            result = self._stages[stage].workers[work.worker](work.item)
        except BaseException as error:  # stage boundary
            self._give_up(stage, work, error)
            return
        with self.lock:
            self.timed.finish(stage, work, result, self._clock())
            self._wake()

    def _feed(self, work: Work) -> None:
        """Make one item and let it in when its bytes fit; close when there are no more, or nobody wants more."""
        try:
            item = self._stages[0].workers[0](None)
            parts = [0 if stage.bytes_of is None else stage.bytes_of(item) for stage in self._stages]
            units = self._units_of(item) if self._units_of is not None else 0
        except StopIteration:
            with self.lock:
                self.timed.close(work, self._clock())
                self._wake()
            return
        except BaseException as error:  # stage boundary
            self._give_up(0, work, error)
            return
        with self.lock:
            self.timed.want(parts, self._clock())
            self._wake()
            while (need := self.timed.machine.need(0)) is Need.ROOM:
                self._conditions[0].wait()
            if need is Need.OVER:
                self.timed.close(work, self._clock())
            else:
                self.timed.admit(work, item, units, self._clock())
            self._wake()

    def _give_up(self, stage: int, work: Work, error: BaseException) -> None:
        try:
            attempts = self._stages[stage].attempts(error) if isinstance(error, Exception) else 1
        except Exception as broken:  # stage boundary
            error, attempts = broken, 1
        with self.lock:
            self.timed.fail(stage, work, error, self._clock(), attempts=attempts)
            self._wake()

    def _wake(self) -> None:
        for stage, need in self.timed.wake(self._clock()):
            if need is Need.NOTHING:
                self._conditions[stage].notify()
            else:
                self._conditions[stage].notify_all()

    def _wake_all(self) -> None:
        for condition in self._conditions:
            condition.notify_all()
