"""From acceptance to speed: what a forward costs on this device, measured, and what acceptance is then worth.

A verification of n tokens takes T_draft(n) + T(n) and commits tau(n) tokens; plain decoding takes T(1) for each. So
    speedup(n) = tau(n) * T(1) / (T_draft(n) + T(n)),
and it pays where tau(n) exceeds the break-even (T_draft(n) + T(n)) / T(1). How T grows with n decides: not at all
where the device waits for memory, in proportion where it computes. Verifying fewer tokens than were drafted may pay;
tau(n) is read off the acceptance by slot, as if blocks began at the same places.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import torch

from draftsmith.drafter import Drafter
from draftsmith.evaluation.speculate import block_logits, check_fit
from draftsmith.target import PositionCache, Target

T = TypeVar("T")


@dataclass(frozen=True)
class Costs:
    """Median seconds of forwards over `batch_size` rows after `context` tokens, by tokens of a row verified at once.

    draft_s counts everything that the drafter does for a verification: reading new hidden states, drafting, the head.
    """

    batch_size: int
    context: int
    target_s: dict[int, float]
    draft_s: dict[int, float]


@dataclass(frozen=True)
class Prediction:
    """What verifying `verify` tokens at once is worth; `break_even` is the acceptance length where it begins to pay."""

    verify: int
    acceptance_length: float
    speedup: float
    break_even: float


@torch.no_grad()
def measure_costs(
    drafter: Drafter, target: Target, *, batch_size: int, context: int, repeats: int = 5, budget_s: float = 60.0
) -> Costs:
    """Time target and drafter for every number of verified tokens, in turn, so that a drifting clock hits all alike.

    Stops early when `budget_s` is spent, but never before every number was measured once.
    """
    check_fit(drafter, target)
    widths = verifiable(drafter.shape.block_size)
    forwards = _Forwards(drafter, target, batch_size, context)
    works: dict[tuple[str, int], Callable[[], object]] = {("target", 1): partial(forwards.target, 1)}
    for width in widths:
        works["target", width] = partial(forwards.target, width)
        works["draft", width] = partial(forwards.draft, width)
    for work in works.values():
        work()  # the first run of a shape may compile or allocate
    seconds: dict[tuple[str, int], list[float]] = {name: [] for name in works}
    start = time.perf_counter()
    for _ in range(repeats):
        for name, work in works.items():
            seconds[name].append(timed(work)[1])
        if time.perf_counter() - start > budget_s:
            break
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    return Costs(
        batch_size,
        context,
        target_s={width: s for (kind, width), s in medians.items() if kind == "target"},
        draft_s={width: s for (kind, width), s in medians.items() if kind == "draft"},
    )


def predict(costs: Costs, by_slot: Sequence[float]) -> list[Prediction]:
    """One prediction for every measured number of tokens, from the share of verifications that kept slot 1, 2, ..."""
    plain = costs.target_s[1]
    predictions = []
    for width, draft_s in costs.draft_s.items():
        if width > len(by_slot) + 1:
            break  # nothing is known of slots that were not verified
        length = 1 + sum(by_slot[: width - 1])
        price = draft_s + costs.target_s[width]
        predictions.append(Prediction(width, length, length * plain / price, price / plain))
    return predictions


def if_verifying_were_free(costs: Costs, predictions: Sequence[Prediction]) -> float:
    """The bound that the whole block's acceptance sets where a verification costs no more than one token."""
    whole = predictions[-1]
    plain = costs.target_s[1]
    return whole.acceptance_length * plain / (costs.draft_s[whole.verify] + plain)


def best(predictions: Sequence[Prediction]) -> Prediction:
    return max(predictions, key=lambda prediction: prediction.speedup)


def verifiable(block_size: int) -> list[int]:
    """Numbers of tokens that are measured: all up to 8, then every fourth, and the whole block."""
    return sorted({*range(2, min(block_size, 8) + 1), *range(12, block_size, 4), block_size})


class _Forwards:
    """Target and drafter with `context` tokens behind them, ready to be run again and again."""

    def __init__(self, drafter: Drafter, target: Target, batch_size: int, context: int) -> None:
        self._drafter, self._target = drafter, target
        shape, device = drafter.shape, target.device
        generator = torch.Generator().manual_seed(0)
        text = torch.randint(target.vocab_size, (batch_size, context), generator=generator).to(device)
        self._positions = torch.arange(context + shape.block_size, device=device).expand(batch_size, -1)
        self._context = context
        self._cache = PositionCache(context + shape.block_size)
        last = torch.tensor([context - 1], device=device)
        _, hidden = target.forward(text, self._positions[:, :context], self._cache, keep=last, capture=True)
        assert hidden is not None
        self._hidden = hidden
        self._known = drafter.context(hidden, self._positions[:, :context])
        self._block = torch.full((batch_size, shape.block_size), shape.mask_token_id, device=device)
        # A batch decodes with a mask, because its rows stand at different places.
        self._mask = torch.ones(batch_size, 1, shape.block_size, context + shape.block_size, device=device).bool()

    def target(self, width: int) -> object:
        positions = self._positions[:, self._context : self._context + width]
        return self._target.forward(self._block[:, :width], positions, self._cache, capture=width > 1)

    def draft(self, width: int) -> object:
        positions = self._positions[:, self._context :]
        fresh = self._hidden[:, :1].expand(-1, width, -1)
        self._drafter.context(fresh, positions[:, :width])
        return block_logits(
            self._drafter, self._target, self._block, positions, self._known, self._mask, num_slots=width
        ).argmax(-1)


def timed(work: Callable[[], T]) -> tuple[T, float]:
    """What `work` returns, and its seconds."""
    _finish_device_work()
    start = time.perf_counter()
    result = work()
    _finish_device_work()
    return result, time.perf_counter() - start


def _finish_device_work() -> None:
    """Kernels run on behind the interpreter's back on a GPU."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
