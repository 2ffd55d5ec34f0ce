"""Proof that an answer is the target's own, at the price of one forward over the finished text."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from draftsmith.target import GREEDY, PositionCache, Sampling, Target, choose, streams


@torch.no_grad()
def num_own(
    target: Target,
    prompts: Sequence[Sequence[int]],
    answers: Sequence[Sequence[int]],
    *,
    sampling: Sampling = GREEDY,
    seeds: Sequence[int] = (),
) -> int:
    """How many answers are the target's choice at every position: by induction, what plain decoding gives."""
    rows = zip(prompts, answers, seeds or [0] * len(prompts), strict=True)
    return sum(is_own(target, prompt, answer, sampling=sampling, seed=seed) for prompt, answer, seed in rows)


def is_own(
    target: Target, prompt: Sequence[int], answer: Sequence[int], *, sampling: Sampling = GREEDY, seed: int = 0
) -> bool:
    """Whether every token of `answer` is what the target chooses after what stands before it."""
    text = torch.tensor([[*prompt, *answer[:-1]]], device=target.device)
    positions = torch.arange(text.shape[1], device=target.device)[None]
    keep = positions[0, len(prompt) - 1 :]
    logits, _ = target.forward(text, positions, PositionCache(text.shape[1]), keep=keep)
    uniforms = streams(sampling, [seed], "token", (1, len(answer)), target.device)
    return choose(logits, sampling, uniforms, whose=f"target {target.name}")[0].tolist() == list(answer)
