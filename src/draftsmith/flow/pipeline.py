"""A pipeline owns its threads: leaving it means that nothing is running. All coordination is in machine.py.

One lock guards the machine. Every stage has one condition on that lock, so that only those are woken who can go on.
Nobody polls and nobody sleeps. A stage is a plain function of one item; it sees no channel and no thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Generic, TypeVar

from draftsmith.errors import StageError
from draftsmith.flow.accounts import FlowStats
from draftsmith.flow.channel import Work
from draftsmith.flow.machine import Machine, Need
from draftsmith.flow.stacks import stacks_of
from draftsmith.flow.timed import TimedMachine
from draftsmith.flow.watchdog import Watchdog

T = TypeVar("T")
U = TypeVar("U")


class Output(Generic[T]):
    """What a stage hands on. Give it to the next stage, or iterate over the last one of a pipeline, once.

    `iter` starts the threads and returns when all of them are ready; work begins with the first `next`.
    """

    def __init__(self, pipeline: Pipeline, stage: int) -> None:
        self.pipeline = pipeline
        self.stage = stage

    def __iter__(self) -> Iterator[T]:
        return self.pipeline._iterate(self.stage)


@dataclass(frozen=True)
class _Stage:
    name: str
    workers: Sequence[Callable[[Any], Any]]
    bytes_of: Callable[[Any], int] | None
    max_items: int
    attempts: Callable[[Exception], int]
    begin: Callable[[], None]
    advice: str


def once(_error: Exception) -> int:
    """Attempts at an item whose stage failed in this way: the failure counts at once."""
    return 1


def _nothing() -> None:
    """What a thread does first where nothing else is asked for."""


class Pipeline:
    """Source, stages and the caller as the consumer, in a row.

    `budget_bytes` bounds the results of all stages together, from the moment their item enters until the stage after
    is done with them. `watchdog_s`: if nothing at all moves for so long, the stage that everything waits for is named
    in a StageError; if it is the caller, only `on_stall` is told. `stop_s` bounds how long leaving may wait for a
    worker that does not return. `describe` names an item in errors. `unit` and the source's `units_of` are what
    rates are counted in.
    """

    def __init__(
        self,
        name: str,
        *,
        budget_bytes: int | None = None,
        max_items: int | None = None,
        watchdog_s: float | None = None,
        stop_s: float = 30.0,
        describe: Callable[[Any], str] | None = None,
        on_stall: Callable[[StageError], None] | None = None,
        consumer: tuple[str, str] = ("consumer", ""),
        unit: str = "items",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        for setting, value in (("budget_bytes", budget_bytes), ("max_items", max_items)):
            if value is not None and value < 1:
                raise ValueError(f"{setting} of pipeline {name} is {value}; it must be at least 1, or None")
        self.name = name
        self._budget_bytes = budget_bytes
        self._max_items = max_items
        self._watchdog_s = watchdog_s
        self._stop_s = stop_s
        self._describe = describe or (lambda _item: "")
        self._on_stall = on_stall or (lambda _error: None)
        self._consumer = consumer
        self._unit = unit
        self._units_of: Callable[[Any], int] | None = None
        self._clock = clock
        self._stages: list[_Stage] = []
        self._lock = threading.Lock()
        self._conditions: list[threading.Condition] = []
        self._threads: list[threading.Thread] = []
        self._timed: TimedMachine | None = None
        self._stalled: StageError | None = None
        self._watchdog: Watchdog | None = None
        self._entered = False
        self._num_ready = 0
        self._is_open = False
        self._not_ready: BaseException | None = None

    def source(
        self, name: str, items: Iterable[T], *, units_of: Callable[[T], int] | None = None, advice: str = ""
    ) -> Output[T]:
        """Where items come from, in the order of the plan. One thread iterates, no further ahead than needed."""
        if self._stages:
            raise ValueError(f"pipeline {self.name} has its source already: {self._stages[0].name}")
        iterator = iter(items)
        self._units_of = units_of
        return self._add(
            _Stage(name, [lambda _nothing: next(iterator)], None, self._max_items or 2, once, _nothing, advice)
        )

    def stage(
        self,
        name: str,
        workers: Sequence[Callable[[T], U]],
        upstream: Output[T],
        *,
        bytes_of: Callable[[Any], int] | None = None,
        max_items: int | None = None,
        attempts: Callable[[Exception], int] = once,
        begin: Callable[[], None] = _nothing,
        advice: str = "",
    ) -> Output[U]:
        """A function of one item, run by one thread per entry of `workers`.

        `bytes_of` tells the size of a result from the item of the *source*, before anything is computed. At most
        `max_items` results are computed or wait at a time (default: two per worker). `attempts` tells how often an
        item may be tried in all when it failed in this way, up to 3; a worker that failed is retired while another
        one lives. `begin` is called by every thread of the stage before any work is handed out. `advice` is what to do
        when this stage is the slowest.
        """
        if upstream.pipeline is not self or upstream.stage != len(self._stages) - 1:
            raise ValueError(f"stage {name} must follow the stage that was added last; a pipeline is a row")
        if not workers:
            raise ValueError(f"stage {name} has no workers; give it at least one")
        items = max_items or self._max_items or 2 * len(workers)
        return self._add(_Stage(name, list(workers), bytes_of, items, attempts, begin, advice))

    def stats(self) -> FlowStats:
        """Where the time of every stage went up to now. Only once iteration has begun."""
        with self._lock:
            return self._running().stats(self._clock())

    def __enter__(self) -> Pipeline:
        self._entered = True
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        """Let running work end, drop everything else, and wait for every thread."""
        if self._timed is None:
            return
        with self._lock:
            self._running().machine.leave()
            for condition in self._conditions:
                condition.notify_all()
        if self._watchdog is not None:
            self._watchdog.stop()
        stuck = self._join()
        if not stuck:
            return
        message = f"pipeline {self.name}: still running after {self._stop_s:g} s: {', '.join(t.name for t in stuck)}"
        if error is None:
            raise StageError(message, stacks=stacks_of(stuck))
        error.add_note(f"{message}\n{stacks_of(stuck)}")

    def _add(self, stage: _Stage) -> Output[Any]:
        if self._timed is not None:
            raise ValueError(f"stage {stage.name} comes too late: pipeline {self.name} is running")
        self._stages.append(stage)
        return Output(self, len(self._stages) - 1)

    def _running(self) -> TimedMachine:
        if self._timed is None:
            raise RuntimeError(f"pipeline {self.name} has not begun; iterate over its last stage")
        return self._timed

    def _iterate(self, stage: int) -> Iterator[Any]:
        if not self._entered:
            raise RuntimeError(f"pipeline {self.name} must be entered with `with` before it is iterated over")
        if stage != len(self._stages) - 1 or self._timed is not None:
            raise RuntimeError(f"pipeline {self.name} is iterated over once, at its last stage")
        self._start()
        return _Consumer(self)

    def _start(self) -> None:
        machine = Machine(
            [len(stage.workers) for stage in self._stages],
            max_items=[stage.max_items for stage in self._stages],
            budget_bytes=self._budget_bytes,
        )
        timed = TimedMachine(
            machine,
            names=[*(stage.name for stage in self._stages), self._consumer[0]],
            advice=[*(stage.advice for stage in self._stages), self._consumer[1]],
            unit=self._unit,
        )
        self._conditions = [threading.Condition(self._lock) for _ in range(len(self._stages) + 1)]
        self._timed = timed
        for index, stage in enumerate(self._stages):
            for worker in range(len(stage.workers)):
                self._spawn(index, worker)
        with self._lock:
            while self._num_ready < len(self._threads) and self._not_ready is None:
                self._conditions[-1].wait()
        if self._not_ready is not None:
            raise StageError(f"pipeline {self.name}: {_in_words(self._not_ready)}") from self._not_ready

    def _open(self, timed: TimedMachine) -> None:
        """The consumer asks for the first item: work begins, and time counts. Under the lock."""
        self._is_open = True
        timed.open(self._clock())
        for condition in self._conditions:
            condition.notify_all()
        if self._watchdog_s is not None:
            self._watchdog = Watchdog(self._lock, self._watchdog_s, self._clock, timed, self._stall)
            self._watchdog.start(f"{self.name}/watchdog")

    def _spawn(self, stage: int, worker: int) -> None:
        name = f"{self.name}/{self._stages[stage].name}/{worker}"
        # Every thread is waited for on leaving. Daemons only so that one which is stuck in a driver, and has been
        # named, cannot keep a failed process from ending.
        thread = threading.Thread(target=self._live, args=(stage, worker), name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _join(self) -> list[threading.Thread]:
        """Wait for all threads; those that do not end in time. A signal meanwhile is raised once they have ended."""
        deadline = time.monotonic() + self._stop_s
        interrupted: BaseException | None = None
        for thread in self._threads:
            while thread.is_alive() and (left := deadline - time.monotonic()) > 0:
                try:
                    thread.join(left)
                except KeyboardInterrupt as error:
                    interrupted = error
        stuck = [thread for thread in self._threads if thread.is_alive()]
        if interrupted is not None:
            raise interrupted
        return stuck

    def _live(self, stage: int, worker: int) -> None:
        """The life of one thread."""
        try:
            self._stages[stage].begin()
        except BaseException as error:  # stage boundary
            self._not_ready = error
        with self._lock:
            self._num_ready += 1
            self._conditions[-1].notify_all()
            while not self._is_open and not self._running().machine.left:
                self._conditions[stage].wait()
        while (work := self._next(stage, worker)) is not None:
            if stage == 0:
                self._admit(work)
            else:
                self._attempt(stage, work)
            del work  # nothing is held while waiting: its credit has been given back

    def _attempt(self, stage: int, work: Work) -> None:
        timed = self._running()
        try:
            result = self._stages[stage].workers[work.worker](work.item)
        except BaseException as error:  # stage boundary
            self._give_up(stage, work, error)
            return
        with self._lock:
            timed.finish(stage, work, result, self._clock())
            self._wake()

    def _give_up(self, stage: int, work: Work, error: BaseException) -> None:
        try:
            attempts = self._stages[stage].attempts(error) if isinstance(error, Exception) else 1
        except Exception as broken:  # stage boundary
            error, attempts = broken, 1
        with self._lock:
            self._running().fail(stage, work, error, self._clock(), attempts=attempts)
            self._wake()

    def _next(self, stage: int, worker: int) -> Work | None:
        """Wait for work; None when there will be none for this worker."""
        timed = self._running()
        with self._lock:
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

    def _admit(self, work: Work) -> None:
        """Make one item and let it in when its bytes fit; close when the source has no more, or nobody wants more."""
        timed = self._running()
        try:
            item = self._stages[0].workers[0](None)
            parts = [0 if stage.bytes_of is None else stage.bytes_of(item) for stage in self._stages]
            units = self._units_of(item) if self._units_of is not None else 0
        except StopIteration:
            with self._lock:
                timed.close(work, self._clock())
                self._wake()
            return
        except BaseException as error:  # stage boundary
            with self._lock:
                timed.fail(0, work, error, self._clock(), attempts=1)
                self._wake()
            return
        with self._lock:
            timed.want(parts, self._clock())
            self._wake()
            while (need := timed.machine.need(0)) is Need.ROOM:
                self._conditions[0].wait()
            if need is Need.OVER:
                timed.close(work, self._clock())
            else:
                timed.admit(work, item, units, self._clock())
            self._wake()

    def _deliver(self, is_first: bool) -> Any:
        """The consumer's next item. Raises StageError where the stream ends by a failure, StopIteration at its end."""
        timed = self._running()
        consumer = timed.machine.consumer
        with self._lock:
            if is_first:
                self._open(timed)
            else:
                timed.consumed(self._clock())
                self._wake()
            while self._stalled is None and (need := timed.machine.need(consumer)) is not Need.NOTHING:
                if need is Need.OVER:
                    self._raise_failure()
                self._conditions[consumer].wait()
            if self._stalled is not None:
                raise self._stalled
            item = timed.deliver(self._clock())
            self._wake()
            return item

    def _wake(self) -> None:
        for stage, need in self._running().wake(self._clock()):
            if need is Need.NOTHING:
                self._conditions[stage].notify()
            else:
                self._conditions[stage].notify_all()

    def _raise_failure(self) -> None:
        machine = self._running().machine
        failure = machine.failure
        if machine.left:
            raise RuntimeError(f"pipeline {self.name} has been left; iterate inside its `with`")
        if failure is None:
            raise StopIteration
        raise self._error(failure.stage, failure.work, _in_words(failure.error)) from failure.error

    def _error(self, stage: int, work: Work, what: str, stacks: str = "") -> StageError:
        name = self._running().names[stage]
        described = "" if work.item is None else self._describe(work.item)
        place = f"item {work.seq}" + (f" ({described})" if described else "")
        tried = f" after {work.attempt} attempts" if work.attempt > 1 else ""
        return StageError(
            f"stage {name}, worker {work.worker}, {place}{tried}: {what}",
            stage=name,
            worker=work.worker,
            item=work.seq,
            stacks=stacks,
        )

    def _stall(self, seconds: float) -> None:
        """Nothing has moved for too long: name the stage. Called by the watchdog, under the lock."""
        timed, stacks = self._running(), stacks_of(None)
        consumer, oldest = timed.machine.consumer, timed.machine.oldest()
        if timed.accounts[consumer].num_busy or oldest is None:
            name, seq = timed.names[consumer], timed.machine.channels[-1].taken - 1
            message = f"stage {name}, item {seq}: nothing has moved for {seconds:g} s"
            self._on_stall(StageError(message, stage=name, item=seq, stacks=stacks))
            return
        stage, work = oldest
        error = self._error(stage, work, f"has not returned for {seconds:g} s (flow.watchdog_s)", stacks)
        error.add_note(stacks)
        self._stalled = error
        self._on_stall(error)
        self._conditions[consumer].notify_all()


class _Consumer(Iterator[Any]):
    """The caller's end of a pipeline."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._is_first = True
        self._is_over = False

    def __next__(self) -> Any:
        if self._is_over:
            raise StopIteration
        is_first, self._is_first = self._is_first, False
        self._is_over = True  # stays so unless an item arrives
        item = self._pipeline._deliver(is_first)
        self._is_over = False
        return item


def _in_words(error: BaseException) -> str:
    text = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
