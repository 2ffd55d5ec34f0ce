"""The plan of one epoch: every batch, in order, before anything runs; a function of lengths, settings, seed, epoch."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from draftsmith.errors import PlanError
from draftsmith.plan.batches import BatchTable, checked_lengths, cut_buckets
from draftsmith.plan.keyed import IntArray, key_of, permutation
from draftsmith.plan.orders import policy_named
from draftsmith.plan.orders.base import BucketArray
from draftsmith.plan.packing import pack_batches
from draftsmith.plan.settings import PlanSettings

PLAN_VERSION = 1  # raise it whenever the same inputs give another plan


@dataclass(frozen=True)
class PlannedBatch:
    """One batch. samples: int64 [n], ids of its samples; rows: int64 [n], the row of each (several samples share a row
    only when packed). padded_length: tokens of every row, the padding included."""

    seq: int
    epoch: int
    bucket: int
    samples: IntArray
    padded_length: int
    rows: IntArray


@dataclass(frozen=True)
class EpochPlan:
    """All batches of an epoch in order; step t is read without reading those before it.

    order: uint8 [N], the bucket of every step. The arrays below are in order of the steps and read-only:
    samples, rows: int64 [n]; offsets: int64 [N + 1]; padded: int64 [N]. lengths_sha256 names the input.
    """

    settings: PlanSettings
    seed: int
    epoch: int
    order: BucketArray
    samples: IntArray = field(repr=False)
    rows: IntArray = field(repr=False)
    offsets: IntArray = field(repr=False)
    padded: IntArray = field(repr=False)
    edges: tuple[int, ...]
    num_dropped: int
    num_truncated: int
    certificate: dict[str, Any]
    lengths_sha256: str

    @property
    def num_batches(self) -> int:
        return len(self.order)

    def __len__(self) -> int:
        return len(self.order)

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """Batches of every bucket."""
        return tuple(np.bincount(self.order, minlength=len(self.edges)).tolist())

    def batch(self, seq: int) -> PlannedBatch:
        """The batch of step seq, 0 <= seq < num_batches; otherwise PlanError."""
        if not 0 <= seq < len(self.order):
            raise PlanError(f"step {seq} is outside of this epoch, which has steps 0 to {len(self.order) - 1}")
        start, stop = int(self.offsets[seq]), int(self.offsets[seq + 1])
        return PlannedBatch(
            seq=seq,
            epoch=self.epoch,
            bucket=int(self.order[seq]),
            samples=self.samples[start:stop],
            padded_length=int(self.padded[seq]),
            rows=self.rows[start:stop],
        )

    def __iter__(self) -> Iterator[PlannedBatch]:
        return self.from_step(0)

    def from_step(self, seq: int) -> Iterator[PlannedBatch]:
        """The batches of steps seq, seq + 1, ...; seq = num_batches gives none. Costs nothing for the steps before."""
        if not 0 <= seq <= len(self.order):
            raise PlanError(f"step {seq} is outside of this epoch, which has {len(self.order)} steps")
        return (self.batch(step) for step in range(seq, len(self.order)))

    @cached_property
    def sha256(self) -> str:
        """Hash of everything that matters: version, settings, seed, epoch, lengths, and every batch in order."""
        head = {
            "version": PLAN_VERSION,
            "settings": self.settings.as_dict(),
            "seed": self.seed,
            "epoch": self.epoch,
            "lengths": self.lengths_sha256,
            "edges": list(self.edges),
        }
        digest = hashlib.sha256(json.dumps(head, sort_keys=True).encode())
        for array in (self.order, self.samples, self.rows, self.offsets, self.padded):
            digest.update(array.astype("<i8").tobytes())
        return digest.hexdigest()


def build_plan(lengths: object, settings: PlanSettings, *, seed: int, epoch: int = 0) -> EpochPlan:
    """Plan one epoch over samples of these token counts (whole numbers, [n]).

    Raises PlanError for lengths or settings that no epoch can be planned from.
    """
    policy = policy_named(settings.order)
    checked = checked_lengths(lengths)
    make_batches = pack_batches if settings.batching == "packed" else cut_buckets
    table = make_batches(checked, settings, key=key_of("batches", seed, epoch))
    counts = np.bincount(table.buckets, minlength=len(table.edges)).tolist()
    order = policy(counts, key_of("order", seed, epoch))
    placed = _place_batches(order.sequence, table, key=key_of("within", seed, epoch))
    samples, rows, offsets = _gather(table, placed)
    return EpochPlan(
        settings=settings,
        seed=seed,
        epoch=epoch,
        order=_frozen(order.sequence),
        samples=_frozen(samples),
        rows=_frozen(rows),
        offsets=_frozen(offsets),
        padded=_frozen(table.padded[placed]),
        edges=table.edges,
        num_dropped=table.num_dropped,
        num_truncated=table.num_truncated,
        certificate=order.certificate,
        lengths_sha256=hashlib.sha256(checked.astype("<i8").tobytes()).hexdigest(),
    )


def _place_batches(sequence: BucketArray, table: BatchTable, *, key: int) -> IntArray:
    """Batch of every step: the j-th visit of a bucket takes its j-th batch in an independent random order, so that a
    bucket's partial batch is not always its last. Shape [N]."""
    placed = np.empty(len(sequence), dtype=np.int64)
    for bucket in range(len(table.edges)):
        members = np.flatnonzero(table.buckets == bucket)
        placed[sequence == bucket] = members[permutation(key_of(key, bucket), len(members))]
    return placed


def _gather(table: BatchTable, placed: IntArray) -> tuple[IntArray, IntArray, IntArray]:
    """Samples, rows and offsets of the batches in the order `placed`."""
    sizes = np.diff(table.offsets)[placed]
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    source = np.arange(offsets[-1], dtype=np.int64) + np.repeat(table.offsets[placed] - offsets[:-1], sizes)
    return table.samples[source], table.rows[source], offsets


def _frozen(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    array.setflags(write=False)
    return array
