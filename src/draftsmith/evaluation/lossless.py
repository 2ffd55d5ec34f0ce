"""Proof that an answer is the target's own greedy answer, at the price of one forward over the finished text."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from draftsmith.target import PositionCache, Target


@torch.no_grad()
def num_greedy(target: Target, prompts: Sequence[Sequence[int]], answers: Sequence[Sequence[int]]) -> int:
    """How many answers are greedy at every position: by induction, these are what plain greedy decoding gives."""
    return sum(is_greedy(target, prompt, answer) for prompt, answer in zip(prompts, answers, strict=True))


def is_greedy(target: Target, prompt: Sequence[int], answer: Sequence[int]) -> bool:
    """Whether every token of `answer` is the target's first choice after what stands before it."""
    text = torch.tensor([[*prompt, *answer[:-1]]], device=target.device)
    positions = torch.arange(text.shape[1], device=target.device)[None]
    keep = positions[0, len(prompt) - 1 :]
    logits, _ = target.forward(text, positions, PositionCache(text.shape[1]), keep=keep)
    return logits[0].argmax(-1).tolist() == list(answer)
