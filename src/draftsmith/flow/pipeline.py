"""A pipeline owns its threads: leaving it means that nothing is running. Failures come out of it as one StageError.

A stage is a plain function of one item; it sees no channel and no thread. The coordination is in machine.py, the
threads are in crew.py.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any, Generic, TypeVar

from draftsmith.errors import StageError
from draftsmith.flow.accounts import FlowStats
from draftsmith.flow.channel import Work
from draftsmith.flow.crew import Crew, Stage
from draftsmith.flow.hang import Hung, interrupt, place_of, take_back
from draftsmith.flow.machine import Machine
from draftsmith.flow.stacks import stacks_of
from draftsmith.flow.timed import TimedMachine
from draftsmith.flow.watchdog import Watchdog

T = TypeVar("T")
U = TypeVar("U")
MIN_ITEMS = 8
AFTER_STALL_S = 5.0  # a worker that hangs has been waited for already, by the watchdog or by who presses Ctrl-C again


class Output(Generic[T]):
    """What a stage hands on. Give it to the next stage, or iterate over the last one of a pipeline, once.

    `iter` starts the threads and returns when all of them are ready; work begins with the first `next`.
    """

    def __init__(self, pipeline: Pipeline, stage: int) -> None:
        self.pipeline = pipeline
        self.stage = stage

    def __iter__(self) -> Iterator[T]:
        return self.pipeline._iterate(self.stage)


def once(_error: Exception) -> int:
    """Attempts at an item whose stage failed in this way: the failure counts at once."""
    return 1


def _nothing() -> None:
    """What a thread does first where nothing else is asked for."""


class Pipeline:
    """Source, stages and the caller as the consumer, in a row.

    `budget_bytes` bounds the results of all stages together, from the moment their item enters until the stage after
    is done with them. `watchdog_s`: if nothing at all moves for so long, the stage that everything waits for is named
    in a StageError, which the caller gets and `on_stall` is told. If the caller itself hangs, the error is raised where
    it is; if it sits in a call that does not return to Python, `on_hang` is told a little later, and can only end the
    process. `on_change` is told, by any thread, of failures that others make good, and of workers that are back. None
    of the three may use the pipeline. `stop_s` bounds how long leaving may wait for a worker that does not return.
    `describe` names an item in errors. `unit` is what the source's `units_of` counts. `consumer`: name and advice of
    the caller's part.
    """

    def __init__(
        self,
        name: str,
        *,
        budget_bytes: int | None = None,
        max_items: int | None = None,
        watchdog_s: float | None = None,
        stop_s: float = 30.0,
        describe: Callable[[Any], str] = lambda _item: "",
        on_stall: Callable[[StageError], None] = lambda _error: None,
        on_hang: Callable[[StageError], None] = lambda _error: None,
        on_change: Callable[[str], None] = lambda _text: None,
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
        self._describe = describe
        self._on_stall = on_stall
        self._on_hang = on_hang
        self._on_change = on_change
        self._stalled: StageError | None = None
        self._caller = 0
        self._stalled_at = (0, 0)
        self._consumer = consumer
        self._unit = unit
        self._units_of: Callable[[Any], int] | None = None
        self._clock = clock
        self._stages: list[Stage] = []
        self._crew: Crew | None = None
        self._watchdog: Watchdog | None = None
        self._entered = False

    def source(
        self, name: str, items: Iterable[T], *, units_of: Callable[[T], int] | None = None, advice: str = ""
    ) -> Output[T]:
        """Where items come from, in the order of the plan. One thread iterates, no further ahead than needed."""
        if self._stages:
            raise ValueError(f"pipeline {self.name} has its source already: {self._stages[0].name}")
        iterator = iter(items)
        self._units_of = units_of
        return self._add(
            Stage(name, [lambda _nothing: next(iterator)], None, self._max_items or 2, once, _nothing, advice)
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
        places: Callable[[], Sequence[str]] = tuple,
    ) -> Output[U]:
        """A function of one item, run by one thread per entry of `workers`.

        `bytes_of` tells the size of a result from the item of the *source*, before anything is computed. At most
        `max_items` results are computed or wait at a time (default: two per worker, and 8 at least, so that uneven
        items do not let anybody wait). `attempts` tells how often an
        item may be tried in all when it failed in this way, up to 3; a worker that failed is retired while another
        one lives, until it is back if it is `Returning`. `begin` is called by every thread of the stage before any work
        is handed out. `advice` is what to do when this stage is the slowest. `places`: what to call each worker now,
        in words.
        """
        if upstream.pipeline is not self or upstream.stage != len(self._stages) - 1:
            raise ValueError(f"stage {name} must follow the stage that was added last; a pipeline is a row")
        if not workers:
            raise ValueError(f"stage {name} has no workers; give it at least one")
        items = max_items or self._max_items or max(MIN_ITEMS, 2 * len(workers))
        return self._add(Stage(name, list(workers), bytes_of, items, attempts, begin, advice, places))

    def stats(self) -> FlowStats:
        """Where the time of every stage went up to now. Only once iteration has begun."""
        crew = self._running()
        with crew.lock:
            return crew.timed.stats(self._clock())

    def alive(self) -> None:
        """The caller does something else for long, such as measuring, and says now and then that it does not hang."""
        crew = self._running()
        with crew.lock:
            crew.timed.last_event = self._clock()

    def __enter__(self) -> Pipeline:
        self._entered = True
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        """Let running work end, drop everything else, and wait for every thread."""
        if self._crew is None:
            return
        if self._watchdog is not None:
            self._watchdog.stop()
            take_back()
        in_a_hurry = self._crew.aborted is not None or isinstance(error, KeyboardInterrupt)
        stop_s = min(self._stop_s, AFTER_STALL_S) if in_a_hurry else self._stop_s
        stuck = self._crew.leave(stop_s)
        if isinstance(error, Hung) and self._stalled is not None:
            raise self._stalled from error
        if not stuck:
            return
        message = f"pipeline {self.name}: still running after {stop_s:g} s: {', '.join(t.name for t in stuck)}"
        if error is None:
            raise StageError(message, stacks=stacks_of(stuck))
        error.add_note(f"{message}\n{stacks_of(stuck)}")

    def _add(self, stage: Stage) -> Output[Any]:
        if self._crew is not None:
            raise ValueError(f"stage {stage.name} comes too late: pipeline {self.name} is running")
        self._stages.append(stage)
        return Output(self, len(self._stages) - 1)

    def _running(self) -> Crew:
        if self._crew is None:
            raise RuntimeError(f"pipeline {self.name} has not begun; iterate over its last stage")
        return self._crew

    def _iterate(self, stage: int) -> Iterator[Any]:
        if not self._entered:
            raise RuntimeError(f"pipeline {self.name} must be entered with `with` before it is iterated over")
        if stage != len(self._stages) - 1 or self._crew is not None:
            raise RuntimeError(f"pipeline {self.name} is iterated over once, at its last stage")
        self._crew = Crew(
            self.name,
            self._stages,
            self._timed(),
            units_of=self._units_of,
            on_change=self._on_change,
            clock=self._clock,
        )
        try:
            self._crew.start()
        except Exception as error:
            raise StageError(f"pipeline {self.name} cannot begin: {_in_words(error)}") from error
        return self._items(self._crew)

    def _timed(self) -> TimedMachine:
        machine = Machine(
            [len(stage.workers) for stage in self._stages],
            max_items=[stage.max_items for stage in self._stages],
            budget_bytes=self._budget_bytes,
        )
        return TimedMachine(
            machine,
            names=[*(stage.name for stage in self._stages), self._consumer[0]],
            advice=[*(stage.advice for stage in self._stages), self._consumer[1]],
            places=[*(stage.places for stage in self._stages), tuple],
            unit=self._unit,
        )

    def _items(self, crew: Crew) -> Iterator[Any]:
        """The consumer's end."""
        crew.open()
        if self._watchdog_s is not None:
            self._caller = threading.get_ident()
            self._watchdog = self._new_watchdog(crew, self._watchdog_s)
            self._watchdog.start(f"{self.name}/watchdog")
        while True:
            try:
                item = crew.next_item()
            except StopIteration:
                self._raise_failure(crew)
                return
            yield item
            del item  # not held while the next one is waited for

    def _new_watchdog(self, crew: Crew, watchdog_s: float) -> Watchdog:
        return Watchdog(
            crew.lock,
            watchdog_s,
            AFTER_STALL_S,
            clock=self._clock,
            timed=crew.timed,
            on_stall=lambda: self._stall(watchdog_s),
            on_hang=self._hang,
        )

    def _raise_failure(self, crew: Crew) -> None:
        """Where the stream ends: nothing to raise if it ends because the plan does."""
        failure = crew.timed.machine.failure
        if crew.timed.machine.left:
            raise RuntimeError(f"pipeline {self.name} has been left; iterate inside its `with`")
        if failure is not None:
            raise self._error(failure.stage, failure.work, _in_words(failure.error)) from failure.error

    def _error(self, stage: int, work: Work, what: str, stacks: str = "") -> StageError:
        name = self._running().timed.names[stage]
        described = "" if work.item is None else self._describe(work.item)
        place = f"item {work.seq}" + (f" ({described})" if described else "")
        counted = work.attempt - work.excused
        tried = f" after {counted} attempts" if counted > 1 else ""
        return StageError(
            f"stage {name}, worker {work.worker}, {place}{tried}: {what}",
            stage=name,
            worker=work.worker,
            item=work.seq,
            stacks=stacks,
        )

    def _stall(self, seconds: float) -> None:
        """Nothing has moved for too long: name the stage. Called by the watchdog, under the lock."""
        crew, stacks = self._running(), stacks_of(None)
        timed, oldest = crew.timed, crew.timed.machine.oldest()
        consumer = timed.machine.consumer
        deserted = next((stage for stage, c in enumerate(timed.machine.channels) if not c.alive), None)
        if timed.accounts[consumer].num_busy or (oldest is None and deserted is None):
            name, seq = timed.names[consumer], timed.machine.channels[-1].taken - 1
            message = f"stage {name}, item {seq}: has not returned for {seconds:g} s (flow.watchdog_s)"
            self._stalled = StageError(message, stage=name, item=seq, stacks=stacks)
            self._stalled_at = place_of(self._caller)
            interrupt(self._caller)
        elif deserted is not None:
            name, what = timed.names[deserted], f"none is back after {seconds:g} s (flow.watchdog_s)"
            self._stalled = StageError(f"stage {name}: all its workers are lost, and {what}", stage=name, stacks=stacks)
            crew.abort(self._stalled)
        else:
            assert oldest is not None
            what = f"has not returned for {seconds:g} s (flow.watchdog_s)"
            self._stalled = self._error(*oldest, what, stacks)
            crew.abort(self._stalled)
        self._stalled.add_note(stacks)
        self._on_stall(self._stalled)

    def _hang(self) -> None:
        """Time is up for the caller: it may be cleaning up, or not even have noticed. Called by the watchdog."""
        if self._stalled is not None and place_of(self._caller) == self._stalled_at:
            self._on_hang(self._stalled)


def _in_words(error: BaseException) -> str:
    text = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
