"""The way from a configuration to a trained, measured, exported drafter; begun, or gone on with."""

from __future__ import annotations

import functools
import gc
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from draftsmith.config import RunConfig, parse_config
from draftsmith.distributed import Peers, Seat, is_sharded, joined, shard
from draftsmith.drafter import Drafter, mask_builder
from draftsmith.errors import CheckpointError, DraftsmithError, Interrupted, StageError
from draftsmith.export import export_drafter
from draftsmith.flow import Background
from draftsmith.observe import Journal, Progress, StopRequest, check_sinks, open_sinks, silenced
from draftsmith.run.contract import contract_of
from draftsmith.run.directory import (
    Claim,
    as_settled_before,
    claimed,
    discarded_on_failure,
    resume_command,
    write_json,
    write_settings,
)
from draftsmith.run.exporting import card_of
from draftsmith.run.loop import learn, spent, warn
from draftsmith.run.measuring import evaluate
from draftsmith.run.opening import (
    check_something_is_left,
    features_on_disk,
    new_drafter,
    open_store,
    place,
    plans_of,
    prompt_sets,
    say_what_was_rejected,
)
from draftsmith.run.reporting import reported
from draftsmith.run.resuming import Begun, begin, facts_of, follow
from draftsmith.run.rounds import check_epoch, check_step
from draftsmith.run.seating import check_seat, seated, set_up_at, uses_gpu
from draftsmith.run.workplace import Workplace
from draftsmith.streams import CONSUMER, Workers, workers_here
from draftsmith.target import load_target, load_tokenizer
from draftsmith.training import Bystander, Saver, TrainState, best_steps, open_checkpoint, params_sha256, step_directory

RUN = "run"  # what the first rank tells the others about it


def train_at(
    config: RunConfig, seat: Seat, *, name: str, resume: bool = False, workers: Workers = workers_here
) -> dict[str, Any] | None:
    """The part of one rank in `train`, when all have been started. `workers` compute the hidden states."""
    check_sinks(config.observe.sinks)
    check_seat(config, seat)
    check_step(config, seat.size)
    with joined(seat, on_gpu=uses_gpu(config, seat), timeout_s=2 * config.flow.watchdog_s) as peers:
        if peers.leads:
            return _lead(config, peers, workers, name=name, resume=resume)
        with silenced():
            _follow(peers, workers)
        return None


def _follow(peers: Peers, workers: Workers) -> None:
    """Take part in what the first rank does, until training ends."""
    told = peers.hear(RUN)
    config = parse_config(told["config"])
    set_up_at(config, peers.seat)
    work, state = _open(Path(told["directory"]), config, peers, workers)
    follow(state, work)
    with Journal(None) as journal, StopRequest() as stop:
        learn(work, state, Bystander(), journal, stop)
        with stop.shielded():
            Bystander().save(state)
    if stop.received is not None:
        raise Interrupted(stop.received, f"what was trained is in {work.run}; train with --resume goes on")


def _lead(config: RunConfig, peers: Peers, workers: Workers, *, name: str, resume: bool) -> dict[str, Any]:
    """Everything that happens once, and training."""
    config = set_up_at(as_settled_before(config), peers.seat)
    with claimed(config, name, resume=resume) as claim:
        peers.tell(RUN, {"directory": str(claim.run.absolute()), "config": config.model_dump(mode="json")})
        with discarded_on_failure(claim):
            changed = write_settings(claim.run, config)
            work, state = _open(claim.run, config, peers, workers)
            begun = begin(claim, state, work)
        with (
            reported(claim.run),
            Journal(claim.run, keep_bytes=begun.keep_bytes) as journal,
            _told_to_sinks(claim.run, config, journal),
        ):
            if config.runtime == "ray":
                journal.event("on_ray", goes_on_with=resume_command(claim.run))
            elif config.ray.address is not None:
                warn(journal, f"ray.address is {config.ray.address!r}, which is ignored, because runtime is not ray")
            _say_how_it_begins(journal, claim, work, state, begun, changed)
            with StopRequest() as stop:
                summary = _train(work, state, begun, journal, stop)
            if stop.received is not None:
                journal.event("interrupted", signal=stop.received, step=state.step)
                raise Interrupted(stop.received, f"what was trained is in {claim.run}; train with --resume goes on")
            prompts = work.prompts
            del work, state
            gc.collect()  # parts of the pipeline refer to each other, and to hidden states whose room is needed now
            summary = evaluate(claim.run, config, prompts)
            measured = {name: summary[name] for name in ("acceptance_length", "speedup") if name in summary}
            journal.event("end", step=summary["train_steps"], **measured)
        summary |= {"finished": True}  # the very last thing: whatever a kill cut off before is done again
        write_json(claim.run / "summary.json", summary)
    return summary


@contextmanager
def _told_to_sinks(run: Path, config: RunConfig, journal: Journal) -> Iterator[None]:
    """Whatever the journal is told, dashboards are told as well."""
    settings = config.model_dump(mode="json", exclude_none=True)
    with (
        open_sinks(config.observe.sinks, run, settings, warn=functools.partial(warn, journal)) as sinks,
        journal.heard_by(sinks),
    ):
        yield


def _open(run: Path, config: RunConfig, peers: Peers, workers: Workers) -> tuple[Workplace, TrainState]:
    """Load and check everything; what would fail at the first step fails here."""
    config = seated(config, peers.seat)
    with Progress(f"loading {config.target.model} and its conversations"):
        tokenizer = load_tokenizer(config.target)
        where = place(config)
        target = load_target(config.target, device=where.drafter_device)
        with peers.first_one_first("store"):
            store = open_store(config, tokenizer, run)
    say_what_was_rejected(store)
    drafter = new_drafter(config, target, tokenizer, store)
    mask_builder(config.drafter.attention, target.device)
    seen = np.union1d(store.tokens_seen("train"), list(tokenizer.added_tokens_decoder))
    plans = plans_of(config, store)
    check_something_is_left(config, store, plans(0))
    check_epoch(plans(0), peers.size)
    prompts = prompt_sets(config, run) if peers.leads else {}
    with peers.first_one_first("hidden states"):
        cache = features_on_disk(config, store, target)
    work = Workplace(
        run=run,
        config=config,
        store=store,
        plans=plans,
        target=target,
        cache=cache,
        where=where,
        workers=workers,
        prompts=prompts,
        contract=contract_of(config, store, target, drafter),
        peers=peers,
    )
    if config.distributed.sharding == "fsdp2" and peers.size > 1:
        shard(drafter, drafter.typed_layers(), method="forward_with_context", device=target.device)
    return work, TrainState.create(drafter.to(target.device), config, seen)


def _say_how_it_begins(
    journal: Journal, claim: Claim, work: Workplace, state: TrainState, begun: Begun, changed: list[str]
) -> None:
    if claim.swept:
        journal.event("swept", leftovers=claim.swept)
    for problem in begun.problems:
        journal.event("corrupt_checkpoint", problem=problem)
    if begun.is_saved:
        epochs = state.epoch + state.seq / work.plans(state.epoch).num_batches
        share = spent(work.config.train, state, epochs)
        found = {"step": begun.step, "progress": round(share, 6), "restored_s": round(begun.restored_s, 3)}
        journal.event("resume", **found, environment_changed=changed)
        with Progress(f"{claim.run}: going on after step {begun.step:,}") as progress:
            for problem in begun.problems:
                progress.note(f"a newer checkpoint was damaged and set aside: {problem}")
            if changed:
                progress.note(f"results may differ in their last bits: {'; '.join(changed)}")
        return
    plan = work.plans(0)
    journal.event(
        "start",
        plan_sha256=plan.sha256,
        store=work.store.fingerprint,
        target=work.target.fingerprint(),
        weights_from=None if begun.weights_from is None else str(begun.weights_from),
        num_truncated=plan.num_truncated,
        num_dropped=plan.num_dropped,
        bucket_edges=plan.edges,
        bucket_batches=plan.counts,
        rows=work.store.accounting.to_json(),
    )


def _train(work: Workplace, state: TrainState, begun: Begun, journal: Journal, stop: StopRequest) -> dict[str, Any]:
    """Train and keep what was trained, whatever ends it, unless a second signal does: that one is in a hurry."""
    with Background("checkpoint") as background:
        saver = Saver(
            work.run,
            work.config.checkpoint,
            background,
            journal,
            facts=functools.partial(facts_of, plans=work.plans, contract=work.contract),
            alarm=functools.partial(warn, journal),
            resumed_step=begun.step if begun.is_saved else None,
        )
        try:
            flow = learn(work, state, saver, journal, stop)
        except DraftsmithError as error:
            if is_sharded(state.drafter):
                _say_what_is_lost(journal, state, saver)
            elif not _cut_a_step(error):
                with stop.shielded(), suppress(CheckpointError):  # what failed first is what people should read
                    _keep(state, work.config, work.run, saver, {})
            _say_what_failed(journal, error)
            raise
        with stop.shielded():
            return _keep(state, work.config, work.run, saver, flow)


def _cut_a_step(error: DraftsmithError) -> bool:
    """Whether training itself hung and was interrupted. Other errors come between two steps, where all is whole."""
    return isinstance(error, StageError) and error.stage == CONSUMER


def _say_what_is_lost(journal: Journal, state: TrainState, saver: Saver) -> None:
    """Parts of a drafter can be put together only where all ranks take part, and one has failed."""
    saved = "its beginning" if saver.saved_step is None else f"step {saver.saved_step:,}"
    warn(journal, f"step {state.step:,} cannot be saved, because each rank has a part of it; resume from {saved}")


def _say_what_failed(journal: Journal, error: DraftsmithError) -> None:
    where = {"stage": error.stage, "worker": error.worker, "item": error.item} if isinstance(error, StageError) else {}
    journal.event("failed", **where, error=str(error))


def _keep(state: TrainState, config: RunConfig, run: Path, saver: Saver, flow: dict[str, Any]) -> dict[str, Any]:
    """Save and export what was trained, and write the first half of summary.json."""
    saver.save_now(state)
    drafter, exported_step = _to_export(state, config, run)
    summary = {
        "target": config.target.model,
        "seed": config.seed,
        "train_seconds": round(state.seconds, 3),
        "train_steps": state.step,
        "train_context_tokens": state.num_context_tokens,
        "num_anchors_trained": state.num_anchors,
        "num_skipped_steps": state.guards.num_skipped,
        "num_loss_spikes": state.guards.num_spikes,
        "checkpoint_blocked_s": round(saver.blocked_s, 3),
        "exported_step": exported_step,
        "held_out_acceptance": {str(step): length for step, length in sorted(state.acceptance.items())},
        "params_sha256": params_sha256(drafter),
        "drafter": str(run / "drafter"),
        "flow": flow,
    }
    export_drafter(drafter, run / "drafter", card=card_of(drafter.shape, summary, config), replace=True)
    write_json(run / "summary.json", summary)
    return summary


def _to_export(state: TrainState, config: RunConfig, run: Path) -> tuple[Drafter, int]:
    """The drafter that is exported, and of which step it is.

    Raises CheckpointError if the best one is asked for and its checkpoint is not whole.
    """
    best = best_steps(state.acceptance)[0] if state.acceptance else state.step
    if config.eval.export == "last":
        best = state.step
    if best == state.step and not is_sharded(state.drafter):
        return state.drafter, state.step
    return open_checkpoint(step_directory(run, best)).drafter(), best
