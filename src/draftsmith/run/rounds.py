"""The plan as ranks take it: round after round, one batch for each, the same list on every rank.

A step is `train.grad_accum` batches, however many ranks share it. So the number of ranks decides how fast a step is,
and neither which batches it has nor how many steps there are.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from draftsmith.config import RunConfig
from draftsmith.data import TokenStore
from draftsmith.errors import ConfigError, PlanError
from draftsmith.plan import EpochPlan, deal_epoch
from draftsmith.records import BatchSpec
from draftsmith.run.opening import Plans, planned
from draftsmith.training import TrainState


@dataclass(frozen=True)
class Round:
    """The next batches of the plan, in its order, and the rank of each. Only training's last round may be short."""

    specs: tuple[BatchSpec, ...]
    ranks: tuple[int, ...]

    def place_of(self, rank: int) -> int | None:
        """Which batch of the round is this rank's; None if there is none for it."""
        return self.ranks.index(rank) if rank in self.ranks else None


def rounds(config: RunConfig, store: TokenStore, plans: Plans, state: TrainState, num_ranks: int) -> Iterator[Round]:
    """Every round from where `state` stands to the end of the budget."""
    specs = planned(config, store, plans, state)
    ranks = _ranks(plans, state.epoch, state.seq, num_ranks)
    groups = iter(lambda: tuple(itertools.islice(specs, num_ranks)), ())
    return (Round(group, tuple(itertools.islice(ranks, len(group)))) for group in groups)


def batches_of(rank: int, rounds: Iterator[Round]) -> Iterator[BatchSpec]:
    """What one rank has to do."""
    return (spec for each in rounds for spec, owner in zip(each.specs, each.ranks, strict=True) if owner == rank)


def check_step(config: RunConfig, num_ranks: int) -> None:
    """Raises ConfigError if a step cannot be shared evenly by so many ranks."""
    accumulated = config.train.grad_accum
    if accumulated % num_ranks:
        raise ConfigError(
            f"train.grad_accum is {accumulated}: a step of so many batches cannot be shared evenly by {num_ranks} "
            f"processes; set it to {-(-accumulated // num_ranks) * num_ranks}, or use fewer processes"
        )


def check_epoch(plan: EpochPlan, num_ranks: int) -> None:
    """Raises PlanError if an epoch does not have a batch for each rank."""
    if plan.num_batches < num_ranks:
        raise PlanError(
            f"an epoch has {plan.num_batches} batches, fewer than the {num_ranks} processes; use fewer, or lower "
            "batching.max_tokens"
        )


def _ranks(plans: Plans, epoch: int, seq: int, num_ranks: int) -> Iterator[int]:
    """Rank of batch after batch. A round that an epoch leaves short is completed by the next one."""
    if num_ranks == 1:
        yield from itertools.repeat(0)
    start = seq % num_ranks
    for number in itertools.count(epoch):
        order = plans(number).order
        yield from deal_epoch(order, num_ranks, start=start)[seq:].tolist()
        start, seq = (start - len(order)) % num_ranks, 0
