"""How a token is chosen from logits: the most likely one, or a draw by key after temperature, top-k and top-p.

The draw for token i of an answer uses the i-th number of a stream that belongs to the answer's own seed. So a sampled
answer depends on nothing but model, prompt, settings and seed: not on its batch, nor on how many tokens are decided at
once.

Legend: R rows, N tokens of an answer, V vocabulary; ... any leading dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from draftsmith.errors import ModelError
from draftsmith.keyed import keyed_generator


@dataclass(frozen=True)
class Sampling:
    """temperature 0 is greedy. top_k 0 and top_p 1 leave the distribution whole."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0


GREEDY = Sampling()


def most_likely(logits: torch.Tensor, *, whose: str) -> torch.Tensor:
    """Ids [...] of the greatest logits [..., V]. Raises ModelError on NaN, which would otherwise pass for a token."""
    values, ids = logits.max(-1)
    _refuse_nan(values, whose)
    return ids


def probabilities(logits: torch.Tensor, sampling: Sampling, *, whose: str) -> torch.Tensor:
    """The distribution [..., V] that tokens are drawn from, in fp32: temperature, then top-k, then top-p.

    top-k keeps whatever ties with the k-th; top-p keeps the fewest most likely tokens that reach it together.
    """
    scores = logits.float() / sampling.temperature
    if 0 < sampling.top_k < scores.shape[-1]:
        least = scores.topk(sampling.top_k).values[..., -1:]
        scores = scores.masked_fill(scores < least, -torch.inf)
    shares = scores.softmax(-1)
    _refuse_nan(shares[..., 0], whose)  # one NaN makes the whole row NaN
    if sampling.top_p >= 1:
        return shares
    ranked, order = shares.sort(descending=True, stable=True)
    ranked = ranked.masked_fill(ranked.cumsum(-1) - ranked >= sampling.top_p, 0)
    kept = torch.zeros_like(shares).scatter(-1, order, ranked)
    return kept / kept.sum(-1, keepdim=True)


def draw(weights: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """Ids [...] drawn in proportion to weights [..., V], one for each uniform [...] in [0, 1): the inverse of the sum.

    The sum runs in fp64, so that kernels which differ in the last bits choose differently almost never.
    """
    sums = weights.double().cumsum(-1)
    ids = torch.searchsorted(sums, (uniforms[..., None] * sums[..., -1:]), right=True)[..., 0]
    return ids.clamp(max=weights.shape[-1] - 1)


def choose(logits: torch.Tensor, sampling: Sampling, uniforms: torch.Tensor, *, whose: str) -> torch.Tensor:
    """Ids [...] from logits [..., V]: the most likely, or drawn with the uniforms [...]."""
    if sampling.temperature <= 0:
        return most_likely(logits, whose=whose)
    return draw(probabilities(logits, sampling, whose=whose), uniforms)


def streams(
    sampling: Sampling, seeds: Sequence[int], purpose: str, shape: tuple[int, int], device: torch.device
) -> torch.Tensor:
    """Uniforms fp64 [R, N]: row r is the stream of seeds[r] for this purpose, whatever the other rows are.

    Greedy decoding needs no seeds, and gets zeros.
    """
    if sampling.temperature <= 0:
        return torch.zeros(shape, dtype=torch.float64, device=device)
    num_rows, num = shape
    if len(seeds) != num_rows:
        raise ValueError(f"{num_rows} sampled answers need as many seeds, not {len(seeds)}")
    rows = [torch.from_numpy(keyed_generator(seed, purpose).random(num)) for seed in seeds]
    return torch.stack(rows).to(device)


def _refuse_nan(values: torch.Tensor, whose: str) -> None:
    if bool(values.isnan().any()):
        raise ModelError(f"{whose} gives logits that are no numbers (NaN); try float32, or check its weights")
