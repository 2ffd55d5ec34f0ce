"""train(): the way from a configuration to a trained, measured, exported drafter."""

from __future__ import annotations

import dataclasses
import functools
import gc
import time
from pathlib import Path
from typing import Any

import numpy as np

from draftsmith.config import RunConfig, TrainConfig
from draftsmith.data import TokenStore
from draftsmith.drafter import mask_builder
from draftsmith.errors import Interrupted, StageError
from draftsmith.export import export_drafter, model_card
from draftsmith.flow import FlowStats, slowest
from draftsmith.observe import Journal, Progress, StopRequest
from draftsmith.run.directory import create_run, discarded_on_failure, write_json
from draftsmith.run.measuring import evaluate
from draftsmith.run.opening import (
    check_something_is_left,
    features_on_disk,
    new_drafter,
    open_store,
    place,
    plan_epoch,
    planned,
    prompt_sets,
    say_what_was_rejected,
    set_up,
)
from draftsmith.run.reporting import reported
from draftsmith.streams import Topology, feature_stream
from draftsmith.target import (
    FeatureCache,
    Target,
    load_target,
    load_tokenizer,
)
from draftsmith.training import (
    StepMetrics,
    TrainState,
    finish_step,
    params_sha256,
    save_checkpoint,
    train_step,
)

FLOW_EVERY = 10  # steps between two reports on the flow in metrics.jsonl


def train(config: RunConfig, *, name: str) -> dict[str, Any]:
    """Train, save, export, measure; returns what summary.json holds. Raises Interrupted if a signal ended it early."""
    config = set_up(config)
    run = create_run(config, name)
    with discarded_on_failure(run):
        with Progress(f"loading {config.target.model} and its conversations"):
            tokenizer = load_tokenizer(config.target)
            where = place(config)
            target = load_target(config.target, device=where.drafter_device)
            store = open_store(config, tokenizer, run)
        say_what_was_rejected(store)
        drafter = new_drafter(config, target, tokenizer, store)
        mask_builder(config.drafter.attention, target.device)  # refuses now what would fail at the first step
        seen = np.union1d(store.tokens_seen("train"), list(tokenizer.added_tokens_decoder))
        state = TrainState.create(drafter, config, seen)
        prompts = prompt_sets(config, run)
        first_plan = plan_epoch(config, store, epoch=0)
        check_something_is_left(config, store, first_plan)
        cache = features_on_disk(config, store, target)
    with reported(run), Journal(run) as journal:
        journal.event(
            "start",
            plan_sha256=first_plan.sha256,
            store=store.fingerprint,
            target=target.fingerprint(),
            num_truncated=first_plan.num_truncated,
            num_dropped=first_plan.num_dropped,
            bucket_edges=first_plan.edges,
            bucket_batches=first_plan.counts,
            rows=store.accounting.to_json(),
        )
        with StopRequest() as stop:
            start, flow = time.monotonic(), {}
            try:
                flow = _learn(state, config, store, target, cache, where, journal, stop)
            except StageError as error:
                journal.event("failed", stage=error.stage, worker=error.worker, item=error.item, error=str(error))
                raise
            finally:  # whatever ended it, what was trained is kept
                with stop.shielded():
                    summary = _keep(state, config, run, time.monotonic() - start, flow)
        if stop.received is not None:
            journal.event("interrupted", signal=stop.received, step=state.step)
            raise Interrupted(stop.received, f"what was trained is in {run}")
        del cache, target, state
        gc.collect()  # parts of the pipeline refer to each other, and to hidden states whose room is needed now
        summary |= evaluate(run, config, prompts)
        journal.event("end", step=summary["train_steps"])
    return summary


def _learn(
    state: TrainState,
    config: RunConfig,
    store: TokenStore,
    target: Target,
    cache: FeatureCache | None,
    where: Topology,
    journal: Journal,
    stop: StopRequest,
) -> dict[str, Any]:
    """Train until the budget is spent or a signal arrives; returns who was slow, for summary.json."""
    start = time.monotonic()
    specs = planned(config, store)
    on_stall = functools.partial(_journal_stall, journal)
    with (
        feature_stream(specs, config, store, target, cache, where=where, on_stall=on_stall) as stream,
        Progress("training") as progress,
    ):
        for item in stream:
            spec, seconds = item.batch.spec, time.monotonic() - start
            share = _progress(config.train, state.step, seconds, spec.epochs)
            if share >= 1 or stop.received is not None:
                break
            metrics = train_step(state, item, target, config, progress=share)
            del item  # its memory is free before the next one is asked for
            flow = {"flow": stream.summary()} if state.step % FLOW_EVERY == 0 else {}
            place = {"epoch": spec.epoch, "seq": spec.seq, "bucket": spec.bucket, "num_slots": spec.num_slots}
            journal.metrics(**place, **dataclasses.asdict(metrics), **flow)
            progress.show(lambda m=metrics, s=seconds, done=share: _progress_line(m, s, done, stream.stats()))  # type: ignore[misc]
        finish_step(state, config)
        return stream.summary()


def _journal_stall(journal: Journal, error: StageError) -> None:
    journal.event(
        "stall", stage=error.stage, worker=error.worker, item=error.item, error=str(error), stacks=error.stacks
    )


def _progress(budget: TrainConfig, step: int, seconds: float, epochs: float) -> float:
    """How much of the budget is spent, from 0 to 1. A budget of minutes follows the clock, the others do not."""
    if budget.minutes is not None:
        return seconds / (60 * budget.minutes)
    if budget.max_steps is not None:
        return step / budget.max_steps
    assert budget.epochs is not None
    return epochs / budget.epochs


def _progress_line(metrics: StepMetrics, seconds: float, share: float, stats: FlowStats) -> str:
    left = seconds / share - seconds if share > 0 else 0.0
    return (
        f"{share:4.0%}  step {metrics.step:,}  loss {metrics.loss:.3f}  "
        f"accepted in training {metrics.acceptance:.2f}  {left:.0f} s left  slowest: {slowest(stats)}"
    )


def _keep(
    state: TrainState, config: RunConfig, run: Path, train_seconds: float, flow: dict[str, Any]
) -> dict[str, Any]:
    """Save and export what was trained, and write the first half of summary.json."""
    summary = {
        "target": config.target.model,
        "seed": config.seed,
        "train_seconds": round(train_seconds, 3),
        "train_steps": state.step,
        "train_context_tokens": state.num_context_tokens,
        "num_anchors_trained": state.num_anchors,
        "num_skipped_steps": state.num_skipped,
        "params_sha256": params_sha256(state.drafter),
        "drafter": str(run / "drafter"),
        "flow": flow,
    }
    save_checkpoint(run, state.drafter, {"step": state.step, **summary})
    export_drafter(state.drafter, run / "drafter", card=model_card(state.drafter.shape, summary))
    write_json(run / "summary.json", summary)
    return summary
