"""The loop: features arrive in the order of the plan, each makes a part of a step, between steps things are saved."""

from __future__ import annotations

import dataclasses
import functools
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from queue import SimpleQueue
from typing import Any

from draftsmith.config import TrainConfig
from draftsmith.distributed import Peers, is_sharded, shared_pass
from draftsmith.errors import DivergedError, StageError
from draftsmith.observe import Journal, Progress, StopRequest, TrainingView
from draftsmith.records import BatchSpec
from draftsmith.redaction import redacted
from draftsmith.run.judging import Judge, should_stop
from draftsmith.run.pace import Pace
from draftsmith.run.rounds import batches_of, rounds
from draftsmith.run.workplace import Workplace
from draftsmith.streams import FeatureStream, feature_stream
from draftsmith.training import (
    Bystander,
    Saver,
    StepMetrics,
    TrainState,
    add_batch,
    add_nothing,
    finish_step,
    take_step,
)

FLOW_EVERY = 10  # steps between two reports on the flow in metrics.jsonl


def learn(
    work: Workplace, state: TrainState, saver: Saver | Bystander, journal: Journal, stop: StopRequest
) -> dict[str, Any]:
    """Train until the budget is spent, acceptance rises no more, or a signal arrives; returns who was slow.

    Every rank calls it; the first one has the saver, and a journal that writes. Raises StageError, RankError or
    DivergedError between two steps: what was trained up to there can be saved. (A hang that was interrupted in the
    middle of an update has left `state.is_torn`.)
    """
    config, peers, judge = work.config, work.peers, Judge(work, journal, stop)
    watch, pace, news = _Stopwatch(state.seconds), Pace(peers), _News(journal, peers)
    planned, same = (rounds(config, work.store, work.plans, state, peers.size) for _ in range(2))
    specs, on_stall = batches_of(peers.rank, planned), functools.partial(_journal_stall, journal)
    with (
        feature_stream(
            specs,
            config,
            work.store,
            work.target,
            work.cache,
            where=work.where,
            workers=work.workers,
            on_stall=on_stall,
            on_change=news.tell,
        ) as stream,
        _shown(work, stream, journal),
        closing(news),
    ):
        items, log = iter(stream), _StepLog(journal, stream, pace)
        _measure_if_due(judge, state, saver, stream, watch)  # a kill may have come before it was done
        while not should_stop(config.eval, state.acceptance) and (turn := next(same, None)) is not None:
            place = turn.place_of(peers.rank)
            item = None if place is None else next(items)
            if not state.pending.num_batches and not _all_go_on(state, saver, stop, watch, pace):
                break
            share = spent(config.train, state, turn.specs[-1].epochs)
            if share >= 1:
                break
            log.begin(turn.specs, state.step + 1, share)
            last = state.pending.num_batches + len(turn.specs) == config.train.grad_accum
            with _pass(state, pace, last=last):
                if item is not None and place is not None:
                    add_batch(state, item, work.target, config, ahead=place)
                else:
                    add_nothing(state)
            del item  # its memory is free before the next one is asked for
            state.pending.count(turn.specs)
            if state.pending.num_batches == config.train.grad_accum:
                with pace.together():
                    metrics = take_step(state, config, progress=share, peers=peers)
                state.seconds = watch.seconds()
                pace.did(metrics[-1].grad_norm)
                log.tell(metrics)
                news.write()
                _watch_out(state, metrics[-1], turn.specs[-1], journal)
                _measure_if_due(judge, state, saver, stream, watch)
        log.tell(finish_step(state, config, peers))
        _measure_if_due(judge, state, saver, stream, watch, at_end=True)
        return {**stream.summary(), **pace.summary()}


def _all_go_on(state: TrainState, saver: Saver | Bystander, stop: StopRequest, watch: _Stopwatch, pace: Pace) -> bool:
    """Before a step: no rank was asked to stop. The step before is saved first, by all, if the first rank wants it."""
    agreed = pace.agree(watch.seconds(), stop.received, save=saver.wants(state))
    state.seconds = agreed.seconds
    if agreed.signal is not None:
        stop.received = agreed.signal
        return False
    if agreed.save:
        saver.save(state)
    return True


@contextmanager
def _pass(state: TrainState, pace: Pace, *, last: bool) -> Iterator[None]:
    """Everybody's own business, unless the drafter is spread over ranks: then they go through it together."""
    if not is_sharded(state.drafter):
        yield
        return
    with pace.together(), shared_pass(state.drafter, last=last):
        yield


@contextmanager
def _shown(work: Workplace, stream: FeatureStream, journal: Journal) -> Iterator[None]:
    """The live view, on the rank that speaks."""
    if not work.peers.leads:
        yield
        return
    base_lr = work.config.train.base_lr
    with TrainingView(str(work.run), stream.stats, base_lr=base_lr) as view, journal.heard_by(view):
        yield


class _News:
    """What threads of the pipeline have to tell: at once for people, later for the journal, which is one thread's."""

    def __init__(self, journal: Journal, peers: Peers) -> None:
        self._journal, self._peers = journal, peers
        self._unwritten = SimpleQueue[str]()

    def tell(self, text: str) -> None:
        """By any thread."""
        self._unwritten.put(text)
        if self._peers.leads:
            Progress("warning").note(text)
        else:  # nothing else of it is shown
            print(f"warning: rank {self._peers.rank}: {redacted(text)}", file=sys.stderr)

    def write(self) -> None:
        """By the thread that trains."""
        while not self._unwritten.empty():
            self._journal.event("warning", text=self._unwritten.get())

    close = write


def warn(journal: Journal, text: str) -> None:
    """For people now, and for whoever reads about the run later."""
    journal.event("warning", text=text)
    Progress("warning").note(text)


class _StepLog:
    """The rows of a step, samples and metrics, once it is whole: one that is cut short leaves none."""

    def __init__(self, journal: Journal, stream: FeatureStream, pace: Pace) -> None:
        self._journal, self._stream, self._pace = journal, stream, pace
        self._batches: list[tuple[BatchSpec, int, float]] = []

    def begin(self, specs: Sequence[BatchSpec], step: int, share: float) -> None:
        self._batches += [(spec, step, share) for spec in specs]

    def tell(self, metrics: Sequence[StepMetrics]) -> None:
        """One row of each kind for each batch of the step."""
        for spec, step, _ in self._batches:
            self._journal.trained(step=step, epoch=spec.epoch, seq=spec.seq, samples=spec.samples)
        for (spec, _, share), each in zip(self._batches, metrics, strict=True):
            place = {"epoch": spec.epoch, "seq": spec.seq, "bucket": spec.bucket, "num_slots": spec.num_slots}
            flow = self._flow() if each is metrics[-1] and each.step % FLOW_EVERY == 0 else {}
            self._journal.metrics(**place, progress=round(share, 6), **dataclasses.asdict(each), **flow)
        self._batches = []

    def _flow(self) -> dict[str, Any]:
        return {"flow": {**self._stream.summary(), **self._pace.summary()}}


class _Stopwatch:
    """Seconds of training, those of earlier starts included; what is taken out does not count."""

    def __init__(self, seconds: float) -> None:
        self._began = time.monotonic() - seconds

    def seconds(self) -> float:
        return time.monotonic() - self._began

    def take_out(self, seconds: float) -> None:
        self._began += seconds


def _measure_if_due(
    judge: Judge,
    state: TrainState,
    saver: Saver | Bystander,
    stream: FeatureStream,
    watch: _Stopwatch,
    *,
    at_end: bool = False,
) -> None:
    """Save the step that is measured, so that the best one can be kept, and measure it while it is being written."""
    if judge.is_due(state, at_end=at_end):
        saver.save(state)
        watch.take_out(judge.measure(state, stream.alive))


def _watch_out(state: TrainState, metrics: StepMetrics, spec: BatchSpec, journal: Journal) -> None:
    """Tell of steps that were no ordinary ones; raises DivergedError after ten in a row that were not finite."""
    if not (metrics.skipped or metrics.spike):
        return
    kind = "spike" if metrics.spike else "not_finite"
    place = {"step": state.step, "epoch": spec.epoch, "seq": spec.seq, "samples": spec.samples}
    journal.event(kind, **place, loss=metrics.loss, grad_norm=metrics.grad_norm, skipped=metrics.skipped)
    if state.guards.must_stop:
        raise DivergedError(
            f"loss or gradient were not finite in {state.guards.skipped_in_a_row} steps in a row, the last being step "
            f"{state.step} (batch {spec.seq} of epoch {spec.epoch}, samples {list(spec.samples)}); none of them was "
            "applied. Lower train.lr or train.muon_lr, or set train.dtype=float32"
        )


def _journal_stall(journal: Journal, error: StageError) -> None:
    journal.event(
        "stall", stage=error.stage, worker=error.worker, item=error.item, error=str(error), stacks=error.stacks
    )


def spent(budget: TrainConfig, state: TrainState, epochs: float) -> float:
    """How much of the budget is spent, from 0 to 1. A budget of minutes follows the clock, the others do not."""
    if budget.minutes is not None:
        return state.seconds / (60 * budget.minutes)
    if budget.max_steps is not None:
        return state.step / budget.max_steps
    assert budget.epochs is not None
    return epochs / budget.epochs
