"""Going on where a run stood: its newest whole checkpoint, if nothing that decides the training has changed."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from draftsmith.drafter import Drafter
from draftsmith.errors import CheckpointError
from draftsmith.plan import PlanSettings, Position, position_of, resume_plan
from draftsmith.run.contract import differences
from draftsmith.run.directory import Claim
from draftsmith.run.opening import Plans
from draftsmith.run.workplace import Workplace
from draftsmith.training import (
    Checkpoint,
    TrainState,
    load_whole,
    moments_sha256,
    newest_checkpoint,
    open_checkpoint,
    params_sha256,
    step_directory,
)


def facts_of(state: TrainState, plans: Plans, contract: dict[str, Any]) -> dict[str, Any]:
    """What a checkpoint records besides the state, so that going on can be refused where it would differ."""
    return {"contract": contract, "position": position_of(plans(state.epoch), state.seq).as_dict()}


def newest_of(run: Path) -> tuple[Checkpoint | None, list[str]]:
    """The checkpoint to go on from; None if the run has none yet.

    Newer ones that are damaged are renamed to *.corrupt; what is wrong with each is returned. Raises CheckpointError if
    there are checkpoints and none is whole: starting over is not for us to decide.
    """
    checkpoint, problems = newest_checkpoint(run)
    if checkpoint is None and problems:
        raise CheckpointError(
            f"{run} has no checkpoint that is whole: {'; '.join(problems.values())}; choose another directory with "
            "run.dir=... to start over"
        )
    for directory in problems:
        directory.rename(_free_name(directory))
    return checkpoint, list(problems.values())


def check_sample_log(checkpoint: Checkpoint, run: Path) -> dict[str, int]:
    """Lengths to cut the journal to. Raises CheckpointError if the sample log does not reach to the checkpoint."""
    kept = {str(name): int(size) for name, size in checkpoint.record["journal_bytes"].items()}
    path = run / "samples.jsonl"
    found = path.stat().st_size if path.exists() else 0
    if found < kept["samples.jsonl"]:
        raise CheckpointError(
            f"{path} has {found} bytes, but {checkpoint.directory.name} was taken at {kept['samples.jsonl']}: what was "
            f"trained on cannot be told any more; start a new run from its weights with --from {checkpoint.directory}"
        )
    return kept


@dataclass(frozen=True)
class Begun:
    """Where training begins: after `step`, which is saved already or is 0.

    keep_bytes: what the journal is cut to. problems: what was wrong with newer checkpoints. restored_s: what finding,
    verifying and loading took.
    """

    step: int = 0
    is_saved: bool = False
    keep_bytes: dict[str, int] = field(default_factory=lambda: {"metrics.jsonl": 0, "samples.jsonl": 0})
    problems: tuple[str, ...] = ()
    weights_from: Path | None = None
    restored_s: float = 0.0


def begin(claim: Claim, state: TrainState, work: Workplace) -> Begun:
    """Make a new `state` that of the newest whole checkpoint, or give it the weights that the configuration names.

    The other ranks hear where that is, and `follow` there.

    Raises CheckpointError or PlanError that names each difference if something that decides the training has changed.
    """
    started = time.monotonic()
    checkpoint, problems = newest_of(claim.run)
    if checkpoint is None:
        weights = work.config.drafter.weights
        begun = Begun(weights_from=None if weights is None else load_weights(weights, state.drafter))
        _tell(begun, state, work)
        return begun
    _go_on(checkpoint, state, work)
    keep_bytes = check_sample_log(checkpoint, claim.run)
    begun = Begun(
        checkpoint.step,
        is_saved=True,
        keep_bytes=keep_bytes,
        problems=tuple(problems),
        restored_s=time.monotonic() - started,
    )
    _tell(begun, state, work)
    return begun


def follow(state: TrainState, work: Workplace) -> None:
    """Make a new `state` the one that the first rank begins with; every rank verifies what it loads.

    Raises CheckpointError if what this rank finds is something else.
    """
    told = work.peers.hear(BEGINNING)
    if told["is_saved"]:
        _go_on(open_checkpoint(step_directory(work.run, told["step"])), state, work)
    elif told["weights_from"] is not None:
        load_weights(Path(told["weights_from"]), state.drafter)
    found = _beginning(state, work)
    changed = differences(work.peers.hear(CONTENT), found)
    if changed:
        raise CheckpointError(
            f"rank {work.peers.rank} does not begin as rank 0 does: {'; '.join(changed)}; all machines must see the "
            "same files and have the same versions"
        )


BEGINNING = "beginning"
CONTENT = "what is there at the beginning"


def _tell(begun: Begun, state: TrainState, work: Workplace) -> None:
    if work.peers.size > 1:
        weights_from = None if begun.weights_from is None else str(begun.weights_from)
        where = {"step": begun.step, "is_saved": begun.is_saved, "weights_from": weights_from}
        work.peers.tell(BEGINNING, where)
        work.peers.tell(CONTENT, _beginning(state, work))  # hashes of what is spread over ranks need all of them


def _beginning(state: TrainState, work: Workplace) -> dict[str, Any]:
    """What all ranks must have in common before the first step."""
    return {
        "the plan": work.plans(state.epoch).sha256,
        "the drafter": params_sha256(state.drafter),
        "the moments": moments_sha256(state),
    }


def load_weights(source: Path, drafter: Drafter) -> Path:
    """Give a new drafter the weights of a checkpoint, or of the newest whole one of a run directory; returns which.

    Raises CheckpointError if there is none, or if it is for another target or of another shape.
    """
    if not source.is_dir():
        raise CheckpointError(f"{source} is no directory; --from takes a run, or one of its checkpoints")
    checkpoint = newest_checkpoint(source)[0] if (source / "checkpoints").is_dir() else open_checkpoint(source)
    if checkpoint is None:
        raise CheckpointError(f"{source} has no checkpoint that is whole; see `draftsmith checkpoints {source}`")
    found = checkpoint.drafter()
    changed = differences(found.shape.to_config(), drafter.shape.to_config())
    if changed:
        raise CheckpointError(
            f"{checkpoint.directory} holds a drafter of another shape: {'; '.join(changed)}; set drafter.* as there"
        )
    load_whole(drafter, found.state_dict())
    return checkpoint.directory


def _go_on(checkpoint: Checkpoint, state: TrainState, work: Workplace) -> None:
    changed = differences(checkpoint.record["contract"], work.contract)
    if changed:
        raise CheckpointError(
            f"{checkpoint.directory} cannot be resumed with other settings: {'; '.join(changed)}; set them back, or "
            f"start a new run from its weights with --from {checkpoint.directory}"
        )
    checkpoint.restore(state)
    lengths = work.store.lengths[work.store.train_indices]
    settings = PlanSettings(**work.config.batching.model_dump())
    resume_plan(lengths, settings, Position(**checkpoint.record["position"]))


def _free_name(directory: Path) -> Path:
    path, number = directory.with_name(f"{directory.name}.corrupt"), 1
    while path.exists():
        number += 1
        path = directory.with_name(f"{directory.name}.corrupt{number}")
    return path
