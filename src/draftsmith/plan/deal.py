"""Deal the batches of an epoch to ranks: every step takes the next W batches of the global order, one for each rank.

Handing them out in turn is not good enough: a well mixed order dealt round-robin leaves single ranks dozens of batches
away from their share. Two methods: `coloring` (proven: at every step each rank's count of each bucket is the floor or
the ceiling of the bucket's count so far over W) and `greedy` (fewer repeats within a rank, no proof). The global order
does not depend on W, so a run may go on with another number of ranks at the same batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from draftsmith.errors import PlanError
from draftsmith.plan.coloring import color_edges
from draftsmith.plan.greedy_deal import deal_greedily
from draftsmith.plan.keyed import IntArray
from draftsmith.plan.orders.base import BucketArray

METHODS = ("coloring", "greedy")
TAILS = ("drop", "refill")


@dataclass(frozen=True)
class Deal:
    """batches: int64 [num_steps, world_size], the seq of every rank's batch at every step; num_steps is a multiple of
    grad_accum and the same for all ranks. num_left_out batches of the epoch are not dealt (tail "drop"), num_repeated
    are dealt twice (tail "refill")."""

    batches: IntArray
    method: str
    tail: str
    num_left_out: int
    num_repeated: int
    certificate: dict[str, Any]

    @property
    def num_steps(self) -> int:
        return len(self.batches)


def deal_order(
    order: BucketArray,
    world_size: int,
    *,
    grad_accum: int = 1,
    method: str = "coloring",
    tail: str = "drop",
    start: int = 0,
) -> Deal:
    """Deal the global order (bucket of every step, [N]) to world_size ranks, from batch `start` on.

    start: the first batch not yet trained, when a run goes on with another number of ranks. The tail rule decides
    about the last batches that do not fill a group of world_size x grad_accum: "drop" leaves them out, "refill"
    completes their group with batches seen early in the epoch, of the buckets that are furthest behind.
    Raises PlanError for an epoch shorter than one group under "drop", and for unknown methods and rules.
    """
    for name, value, known in (("deal", method, METHODS), ("tail", tail, TAILS)):
        if value not in known:
            raise PlanError(f"{name} is {value!r}; choose one of {', '.join(known)}")
    if world_size < 1 or grad_accum < 1:
        raise PlanError(f"world size is {world_size} and accumulation {grad_accum}; both must be at least 1")
    if not 0 <= start <= len(order):
        raise PlanError(f"batch {start} is outside of this epoch, which has {len(order)} batches")
    group = world_size * grad_accum
    if tail == "drop" and len(order) < group:
        raise PlanError(
            f"{world_size} ranks x {grad_accum} accumulation steps need {group} batches a step, but the epoch has "
            f"{len(order)}; use fewer ranks, smaller batches, or the tail rule 'refill'"
        )
    seqs = _full_groups(order, start, group, tail)
    ranks = _ranks(order[seqs], world_size, method)
    batches = np.empty((len(seqs) // world_size, world_size), dtype=np.int64)
    batches[np.arange(len(seqs)) // world_size, ranks] = seqs
    batches.setflags(write=False)
    return Deal(
        batches=batches,
        method=method,
        tail=tail,
        num_left_out=max(0, len(order) - start - len(seqs)),
        num_repeated=max(0, len(seqs) - len(order) + start),
        certificate={"count_is_floor_or_ceiling_of_share": True} if method == "coloring" else {},
    )


def deal_epoch(order: BucketArray, world_size: int, *, start: int = 0) -> IntArray:
    """Rank of every batch of an epoch, [N], where no batch is left out: groups of W batches may span two epochs.

    start: batches at the beginning that complete a group of the epoch before, less than world_size. Every group gives
    each rank one batch; only the last group of training may be short. The next epoch starts with (start - N) modulo W.
    """
    if not 0 <= start < world_size:
        raise PlanError(f"{start} batches cannot complete a group of {world_size} ranks")
    num_whole = max(0, len(order) - start) // world_size * world_size
    ranks = np.empty(len(order), dtype=np.int64)
    ranks[:start] = np.arange(world_size - start, world_size)[: len(order)]
    ranks[start : start + num_whole] = _ranks(order[start : start + num_whole], world_size, "coloring")
    ranks[start + num_whole :] = np.arange(len(order) - start - num_whole)
    return ranks


def _full_groups(order: BucketArray, start: int, group: int, tail: str) -> IntArray:
    """Seqs to deal, a multiple of group: those from start on, cut or completed by the tail rule."""
    seqs = np.arange(start, len(order), dtype=np.int64)
    if tail == "drop":
        return seqs[: len(seqs) - len(seqs) % group]
    return np.concatenate([seqs, _refill(order, -len(seqs) % group)])


def _ranks(buckets: BucketArray, world_size: int, method: str) -> npt.NDArray[np.int64]:
    """Rank of every dealt batch. Shape [n], n a multiple of world_size."""
    if world_size == 1 or len(buckets) == 0:
        return np.zeros(len(buckets), dtype=np.int64)
    deal = color_edges if method == "coloring" else deal_greedily
    return np.array(deal(buckets.tolist(), world_size), dtype=np.int64)


def _refill(order: BucketArray, missing: int) -> IntArray:
    """Seqs of `missing` early batches, bucket by bucket as far as each is behind its share of the longer epoch."""
    counts = np.bincount(order).astype(np.int64)
    longer = len(order) + missing
    repeats = counts * missing // len(order)
    behind = counts * longer - (counts + repeats) * len(order)
    for bucket in np.argsort(-behind, kind="stable")[: missing - int(repeats.sum())].tolist():
        repeats[bucket] += 1
    chosen = [_early(order, bucket, num) for bucket, num in enumerate(repeats.tolist())]
    return np.sort(np.concatenate(chosen))


def _early(order: BucketArray, bucket: int, num: int) -> IntArray:
    places = np.flatnonzero(order == bucket)
    return np.resize(places, num).astype(np.int64) if num else places[:0].astype(np.int64)


def rank_sequences(order: BucketArray, deal: Deal) -> Sequence[BucketArray]:
    """The buckets that each rank sees, [num_steps] each."""
    return [order[deal.batches[:, rank]] for rank in range(deal.batches.shape[1])]
