"""The plan as a PyTorch batch sampler, for DataLoader, StatefulDataLoader and the Hugging Face Trainer.

The only file of this room that needs torch. docs/how-to/bucket-sampler.md shows all three.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from torch.utils.data import DataLoader, Sampler

from draftsmith.errors import PlanError
from draftsmith.plan.deal import Deal, deal_order
from draftsmith.plan.epoch import EpochPlan, build_plan
from draftsmith.plan.position import Position, position_of, resume_plan
from draftsmith.plan.settings import PlanSettings


class BucketBatchSampler(Sampler[list[int]]):
    """Batches of sample indices of one rank, by plan. An iteration is an epoch, the next iteration the next epoch.

    lengths: token count of every sample, [n]. num_replicas, rank: data-parallel world and place in it. grad_accum:
    batches per optimiser step; every rank gets the same number of batches, a multiple of it. deal, tail: see
    `draftsmith.plan.deal`. A sample longer than settings.max_tokens is planned as if truncated; truncating it is the
    dataset's business. With settings.shapes "static" all epochs have the same number of batches, which trainers that
    count steps ahead rely on. Raises PlanError.
    """

    def __init__(
        self,
        lengths: object,
        settings: PlanSettings | None = None,
        *,
        seed: int = 0,
        num_replicas: int = 1,
        rank: int = 0,
        grad_accum: int = 1,
        deal: str = "coloring",
        tail: str = "drop",
    ) -> None:
        if not 0 <= rank < num_replicas:
            raise PlanError(f"rank is {rank}, but num_replicas is {num_replicas}; ranks count from 0")
        self.settings = settings or PlanSettings(shapes="static")
        self.seed, self.rank, self.num_replicas = seed, rank, num_replicas
        self._lengths = np.asarray(lengths)
        self._deal_rules = {"grad_accum": grad_accum, "method": deal, "tail": tail}
        self._iterator: _RankIterator | None = None
        self._start = 0
        self._plan, self._deal = self._plan_epoch(0)

    @property
    def epoch(self) -> int:
        """The epoch that the next iteration will run."""
        return self._plan.epoch

    @property
    def plan(self) -> EpochPlan:
        """The plan of that epoch."""
        return self._plan

    def __len__(self) -> int:
        return self._deal.num_steps

    def __iter__(self) -> Iterator[list[int]]:
        self._iterator = _RankIterator(self, self._plan, self._deal, self._start)
        self._start = 0
        return self._iterator

    def set_epoch(self, epoch: int) -> None:
        """Run this epoch next, from its beginning; setting the current epoch again keeps a loaded position."""
        if epoch != self.epoch:
            self._plan, self._deal = self._plan_epoch(epoch)
            self._start = 0
            self._iterator = None

    def state_dict(self, step: int | None = None) -> dict[str, Any]:
        """Where this rank stands: by default after the last batch that was handed out. Workers of a DataLoader fetch
        ahead: then give the number of batches trained this epoch as `step`, or use StatefulDataLoader."""
        if step is None:
            running = self._iterator if self._iterator is not None and self._iterator.plan is self._plan else None
            step = self._start if running is None else running.step
        return self._state_of(self._plan, step)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue there. Raises PlanError that names the difference if lengths, settings, seed or ranks changed."""
        self._plan, self._deal, self._start = self._restore(state)
        self._iterator = None

    def _plan_epoch(self, epoch: int) -> tuple[EpochPlan, Deal]:
        plan = build_plan(self._lengths, self.settings, seed=self.seed, epoch=epoch)
        return plan, self._dealt(plan)

    def _dealt(self, plan: EpochPlan) -> Deal:
        return deal_order(plan.order, self.num_replicas, **self._deal_rules)  # type: ignore[arg-type]

    def _state_of(self, plan: EpochPlan, step: int) -> dict[str, Any]:
        position = position_of(plan, min(step * self.num_replicas, plan.num_batches))
        return {"position": position.as_dict(), "step": step, "num_replicas": self.num_replicas}

    def _restore(self, state: dict[str, Any]) -> tuple[EpochPlan, Deal, int]:
        if state["num_replicas"] != self.num_replicas:
            raise PlanError(
                f"the sampler's state is of {state['num_replicas']} replicas, now there are {self.num_replicas}; "
                "resume with as many, or start from the next epoch"
            )
        position = Position(**state["position"])
        if position.seed != self.seed:
            raise PlanError(f"the sampler's state has seed {position.seed}, this sampler has {self.seed}")
        plan = self._plan
        if position.plan_sha256 != plan.sha256:
            plan = resume_plan(self._lengths, self.settings, position)
        return plan, self._dealt(plan), int(state["step"])

    def _finish(self, plan: EpochPlan) -> None:
        """An iteration of `plan` came to its end: go on to the next epoch, unless someone already did."""
        if plan is self._plan:
            self.set_epoch(plan.epoch + 1)


class _RankIterator(Iterator[list[int]]):
    """One pass over the rest of an epoch; StatefulDataLoader saves and restores this object."""

    def __init__(self, sampler: BucketBatchSampler, plan: EpochPlan, deal: Deal, step: int) -> None:
        self._sampler, self.plan, self._deal, self.step = sampler, plan, deal, step

    def __next__(self) -> list[int]:
        if self.step >= self._deal.num_steps:
            self._sampler._finish(self.plan)
            raise StopIteration
        seq = int(self._deal.batches[self.step, self._sampler.rank])
        self.step += 1
        samples: list[int] = self.plan.batch(seq).samples.tolist()
        return samples

    def state_dict(self) -> dict[str, Any]:
        return self._sampler._state_of(self.plan, self.step)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.plan, self._deal, self.step = self._sampler._restore(state)
        self._sampler._plan = self.plan
        self._sampler._deal = self._deal


class PlannedDataLoader(DataLoader[Any]):
    """A DataLoader that passes `set_epoch` on to its batch sampler, which is where the Trainer calls it."""

    def set_epoch(self, epoch: int) -> None:
        sampler = self.batch_sampler
        assert isinstance(sampler, BucketBatchSampler)
        sampler.set_epoch(epoch)
