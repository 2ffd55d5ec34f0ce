"""How many tokens a target forward yields, counted two ways, with how sure that is and where in blocks and texts.

What engines report is one of the two means: SGLang and vLLM pool over verifications, the reference implementation of
DFlash averages over responses. They differ by several percent, so both are always given.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from draftsmith.evaluation.speculate import Decoded
from draftsmith.keyed import keyed_generator

CONTEXT_EDGES = (0, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
NUM_RESAMPLES = 1000

Interval = tuple[float, float]


@dataclass(frozen=True)
class ContextBin:
    """Verifications with at least `start` and, if there is an `end`, fewer than `end` tokens before their block."""

    start: int
    end: int | None
    length: float
    num_verifications: int


@dataclass(frozen=True)
class Acceptance:
    """length: committed tokens per verification, the target's own token included, pooled over all verifications.

    length_by_response: the mean over answers of their own length; short easy answers weigh more in it. Intervals are
    of 95 %, by resampling answers, and None for fewer than two. by_slot: share of verifications in which slot 1, 2, ...
    was accepted. by_context: pooled lengths by how much text stood before the block.
    """

    length: float
    length_by_response: float
    by_slot: tuple[float, ...]
    num_prompts: int
    num_verifications: int
    interval: Interval | None = None
    interval_by_response: Interval | None = None
    by_context: tuple[ContextBin, ...] = ()


def acceptance_of(
    answers: Sequence[Decoded], *, block_size: int, prompt_lengths: Sequence[int] | None = None
) -> Acceptance:
    """Pool the verifications of answers. An answer that ended with its first token has none and does not count.

    With `prompt_lengths` the result says how acceptance depends on the length of the context.
    """
    committed = [count for answer in answers for count in answer.committed]
    tokens = np.array([sum(a.committed) for a in answers if a.committed], dtype=float)
    forwards = np.array([len(a.committed) for a in answers if a.committed], dtype=float)
    total = max(len(committed), 1)
    pooled, by_response = _intervals(tokens, forwards)
    return Acceptance(
        length=sum(committed) / total,
        length_by_response=float((tokens / forwards).mean()) if len(tokens) else 0.0,
        by_slot=tuple(sum(count > slot for count in committed) / total for slot in range(1, block_size)),
        num_prompts=len(answers),
        num_verifications=len(committed),
        interval=pooled,
        interval_by_response=by_response,
        by_context=_by_context(answers, prompt_lengths) if prompt_lengths else (),
    )


def _intervals(tokens: np.ndarray, forwards: np.ndarray) -> tuple[Interval | None, Interval | None]:
    """Percentiles over resamples of whole answers: verifications of one answer resemble each other."""
    if len(tokens) < 2:
        return None, None
    rows = keyed_generator(0, "bootstrap").integers(len(tokens), size=(NUM_RESAMPLES, len(tokens)))
    pooled = tokens[rows].sum(1) / forwards[rows].sum(1)
    by_response = (tokens / forwards)[rows].mean(1)
    low_high = [np.percentile(values, [2.5, 97.5]).tolist() for values in (pooled, by_response)]
    return tuple(low_high[0]), tuple(low_high[1])


def _by_context(answers: Sequence[Decoded], prompt_lengths: Sequence[int]) -> tuple[ContextBin, ...]:
    contexts: list[int] = []
    counts: list[int] = []
    for answer, length in zip(answers, prompt_lengths, strict=True):
        # A block begins at the newest token, so the context is what stands before that one.
        contexts += (length + np.cumsum([0, *answer.committed[:-1]])).tolist() if answer.committed else []
        counts += answer.committed
    edges = [*CONTEXT_EDGES, None]
    bins = []
    for start, end in zip(CONTEXT_EDGES, edges[1:], strict=True):
        inside = [n for at, n in zip(contexts, counts, strict=True) if at >= start and (end is None or at < end)]
        if inside:
            bins.append(ContextBin(start, end, sum(inside) / len(inside), len(inside)))
    return tuple(bins)
