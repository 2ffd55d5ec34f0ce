"""Tokens per second with and without the drafter, measured in one process on the same prompts, turn by turn."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import torch

from draftsmith.drafter import Drafter
from draftsmith.evaluation.speculate import fill_block, speculate
from draftsmith.target import Target, generate


@dataclass(frozen=True)
class Speed:
    """tokens/s of plain and speculative decoding, one prompt at a time, the prompt's forward included.

    predicted_speedup: what the acceptance of these same answers would give where verifying a block costs as much as
    one token, with the drafter's cost as measured here: a prediction, not a measurement.
    """

    baseline_tokens_per_s: float
    speculative_tokens_per_s: float
    predicted_speedup: float
    num_timed_prompts: int

    @property
    def speedup(self) -> float:
        return self.speculative_tokens_per_s / self.baseline_tokens_per_s


def measure_speed(drafter: Drafter, target: Target, prompts: Sequence[Sequence[int]], *, max_new_tokens: int) -> Speed:
    """Alternate plain and speculative decoding over `prompts`; the first prompt runs once more before, uncounted."""
    plain: list[tuple[int, float]] = []
    drafted: list[tuple[int, float]] = []
    committed: list[int] = []
    for turn, prompt in enumerate([prompts[0], *prompts]):
        answers, seconds = _timed(partial(generate, target, [prompt], max_new_tokens=max_new_tokens))
        decode = partial(speculate, drafter, target, [prompt], max_new_tokens=max_new_tokens)
        decoded, drafted_seconds = _timed(decode)
        if turn > 0:
            plain.append((len(answers[0]), seconds))
            drafted.append((len(decoded[0].tokens), drafted_seconds))
            committed += decoded[0].committed
    baseline, speculative = _rate(plain), _rate(drafted)
    length = sum(committed) / max(len(committed), 1)
    draft_s = _draft_seconds(drafter, target, context=max(len(prompt) for prompt in prompts))
    predicted = length / (1 + draft_s * baseline)
    return Speed(baseline, speculative, predicted, len(prompts))


def _draft_seconds(drafter: Drafter, target: Target, *, context: int, repeats: int = 5) -> float:
    """Seconds of one drafting forward, the head included: median of a few."""
    shape = drafter.shape
    dtype = drafter.fc.weight.dtype
    hidden = torch.zeros(1, context, target.feature_size, dtype=dtype, device=target.device)
    positions = torch.arange(context + shape.block_size, device=target.device)[None]
    block = torch.full((1, shape.block_size), shape.mask_token_id, device=target.device)
    with torch.no_grad():
        known = drafter.context(hidden, positions[:, :context])
        draft = partial(fill_block, drafter, target, block, positions[:, context:], known, None)
        draft()
        return sorted(_timed(draft)[1] for _ in range(repeats))[repeats // 2]


T = TypeVar("T")


def _timed(work: Callable[[], T]) -> tuple[T, float]:
    _finish_device_work()
    start = time.perf_counter()
    result = work()
    _finish_device_work()
    return result, time.perf_counter() - start


def _finish_device_work() -> None:
    """Kernels run on behind the interpreter's back on a GPU."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _rate(runs: Sequence[tuple[int, float]]) -> float:
    return sum(tokens for tokens, _ in runs) / sum(seconds for _, seconds in runs)
