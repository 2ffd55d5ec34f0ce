"""What a batch adds to a step, as numbers: what ranks exchange, and what a row of metrics.jsonl is made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from draftsmith.distributed import Peers
from draftsmith.training.loss import LossParts

NUM_SCALARS = 5


@dataclass(frozen=True)
class BatchFigures:
    """Sums over a batch. num_correct, num_trained: by slot. accepted: see LossParts."""

    numerator: float
    weight: float
    accepted: float
    num_blocks: int
    num_tokens: int
    num_correct: tuple[float, ...]
    num_trained: tuple[float, ...]

    @staticmethod
    def of(parts: LossParts, *, num_blocks: int, num_tokens: int) -> BatchFigures:
        return BatchFigures(
            numerator=float(parts.numerator.detach()),
            weight=float(parts.denominator),
            accepted=float(parts.accepted),
            num_blocks=num_blocks,
            num_tokens=num_tokens,
            num_correct=tuple(parts.num_correct.tolist()),
            num_trained=tuple(parts.num_trained.tolist()),
        )

    @property
    def loss(self) -> float:
        return self.numerator / max(self.weight, 1e-9)

    @property
    def accuracy_by_slot(self) -> tuple[float, ...]:
        """From slot 1 on: slot 0 is known."""
        pairs = zip(self.num_correct[1:], self.num_trained[1:], strict=True)
        return tuple(correct / max(trained, 1) for correct, trained in pairs)

    def to_row(self) -> torch.Tensor:
        """float64 [5 + 2K], exact."""
        scalars = (self.numerator, self.weight, self.accepted, self.num_blocks, self.num_tokens)
        return torch.tensor([*scalars, *self.num_correct, *self.num_trained], dtype=torch.float64)

    @staticmethod
    def from_row(row: list[float]) -> BatchFigures:
        numerator, weight, accepted, num_blocks, num_tokens = row[:NUM_SCALARS]
        num_slots = (len(row) - NUM_SCALARS) // 2
        by_slot = tuple(row[NUM_SCALARS:])
        return BatchFigures(
            numerator, weight, accepted, int(num_blocks), int(num_tokens), by_slot[:num_slots], by_slot[num_slots:]
        )


def of_all_ranks(own: Mapping[int, BatchFigures], num_batches: int, num_slots: int, peers: Peers) -> list[BatchFigures]:
    """The figures of every batch of a step, in the order of the plan; `own` has those of this rank, by place."""
    if peers.size == 1:
        return [own[place] for place in range(num_batches)]
    table = torch.zeros(num_batches, NUM_SCALARS + 2 * num_slots, dtype=torch.float64)
    for place, figures in own.items():
        table[place] = figures.to_row()
    return [BatchFigures.from_row(row) for row in peers.sum(table).tolist()]
