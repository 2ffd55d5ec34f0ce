"""A place in training that survives a restart: a few numbers and hashes, checked before anything goes on."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from draftsmith.errors import PlanError
from draftsmith.plan.epoch import PLAN_VERSION, EpochPlan, build_plan
from draftsmith.plan.settings import PlanSettings


@dataclass(frozen=True)
class Position:
    """step: the next step to run, 0 <= step <= num_batches. Everything else names the plan that step belongs to."""

    seed: int
    epoch: int
    step: int
    settings: dict[str, Any]
    num_samples: int
    lengths_sha256: str
    plan_sha256: str
    version: int = PLAN_VERSION

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON; `Position(**position.as_dict())` is the way back."""
        return asdict(self)


def position_of(plan: EpochPlan, step: int) -> Position:
    """The position before `step` of this plan."""
    if not 0 <= step <= plan.num_batches:
        raise PlanError(f"step {step} is outside of this epoch, which has {plan.num_batches} steps")
    return Position(
        seed=plan.seed,
        epoch=plan.epoch,
        step=step,
        settings=plan.settings.as_dict(),
        num_samples=len(plan.samples) + plan.num_dropped,
        lengths_sha256=plan.lengths_sha256,
        plan_sha256=plan.sha256,
    )


def resume_plan(lengths: object, settings: PlanSettings, position: Position) -> EpochPlan:
    """The plan that a position belongs to, built anew; continue with `plan.from_step(position.step)`.

    Raises PlanError that names the difference if lengths, settings or the planner itself have changed since.
    """
    _refuse_changed_settings(settings, position)
    plan = build_plan(lengths, settings, seed=position.seed, epoch=position.epoch)
    if len(plan.samples) + plan.num_dropped != position.num_samples:
        raise PlanError(
            f"the position was saved over {position.num_samples} samples, now there are "
            f"{len(plan.samples) + plan.num_dropped}; resume with the data it began with, or start a new run"
        )
    if plan.lengths_sha256 != position.lengths_sha256:
        raise PlanError(
            f"the lengths of the {position.num_samples} samples are not those the position was saved over; "
            "resume with the data it began with, or start a new run"
        )
    if plan.sha256 != position.plan_sha256:
        raise PlanError(
            f"epoch {position.epoch} with seed {position.seed} now gives plan {plan.sha256[:12]}, the position was "
            f"saved in plan {position.plan_sha256[:12]}; the saved position is damaged, or this is another build"
        )
    if not 0 <= position.step <= plan.num_batches:
        raise PlanError(f"the position is step {position.step} of an epoch with {plan.num_batches} steps")
    return plan


def _refuse_changed_settings(settings: PlanSettings, position: Position) -> None:
    if position.version != PLAN_VERSION:
        raise PlanError(
            f"the position was saved by plan version {position.version}, this is version {PLAN_VERSION}, "
            "which orders batches differently; finish the run with the version it began with"
        )
    now = settings.as_dict()
    changed = [
        f"batching.{name} was {position.settings.get(name)!r} and is now {now.get(name)!r}"
        for name in sorted({*now, *position.settings})
        if now.get(name) != position.settings.get(name)
    ]
    if changed:
        raise PlanError("; ".join(changed) + ": the epoch would differ; set it back, or start a new run")
