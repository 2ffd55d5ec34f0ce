"""The loop: features arrive in the order of the plan, each makes a part of a step, between steps things are saved."""

from __future__ import annotations

import dataclasses
import functools
import time
from typing import Any

from draftsmith.config import TrainConfig
from draftsmith.errors import DivergedError, StageError
from draftsmith.observe import Journal, StopRequest, TrainingView
from draftsmith.records import BatchSpec
from draftsmith.run.judging import Judge, should_stop
from draftsmith.run.opening import planned
from draftsmith.run.workplace import Workplace
from draftsmith.streams import FeatureStream, feature_stream
from draftsmith.training import Saver, StepMetrics, TrainState, finish_step, train_step

FLOW_EVERY = 10  # steps between two reports on the flow in metrics.jsonl


def learn(work: Workplace, state: TrainState, saver: Saver, journal: Journal, stop: StopRequest) -> dict[str, Any]:
    """Train until the budget is spent, acceptance rises no more, or a signal arrives; returns who was slow.

    Raises StageError or DivergedError between two steps: what was trained up to there can be saved. (A hang that was
    interrupted in the middle of an update has left `state.is_torn`.)
    """
    config, judge, watch = work.config, Judge(work, journal, stop), _Stopwatch(state.seconds)
    specs = planned(config, work.store, work.plans, state)
    on_stall = functools.partial(_journal_stall, journal)
    with (
        feature_stream(
            specs, config, work.store, work.target, work.cache, where=work.where, on_stall=on_stall
        ) as stream,
        TrainingView(str(work.run), stream.stats, base_lr=config.train.base_lr) as view,
        journal.heard_by(view),
    ):
        items = iter(stream)
        _measure_if_due(judge, state, saver, stream, watch)  # a kill may have come before it was done
        while not should_stop(config.eval, state.acceptance) and (item := next(items, None)) is not None:
            spec, state.seconds = item.batch.spec, watch.seconds()
            share = spent(config.train, state, spec.epochs)
            if share >= 1 or (stop.received is not None and not state.pending.num_batches):
                break
            journal.trained(step=state.step + 1, epoch=spec.epoch, seq=spec.seq, samples=spec.samples)
            metrics = train_step(state, item, work.target, config, progress=share)
            del item  # its memory is free before the next one is asked for
            flow = {"flow": stream.summary()} if state.step % FLOW_EVERY == 0 else {}
            place = {"epoch": spec.epoch, "seq": spec.seq, "bucket": spec.bucket, "num_slots": spec.num_slots}
            journal.metrics(**place, progress=round(share, 6), **dataclasses.asdict(metrics), **flow)
            if not state.pending.num_batches:
                state.seconds = watch.seconds()
                _watch_out(state, metrics, spec, journal)
                _measure_if_due(judge, state, saver, stream, watch)
                saver.save_if_due(state)
        finish_step(state, config)
        _measure_if_due(judge, state, saver, stream, watch, at_end=True)
        return stream.summary()


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
    saver: Saver,
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
