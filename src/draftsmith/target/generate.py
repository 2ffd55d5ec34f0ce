"""Plain batched decoding: what the target answers without a drafter. Greedy, or sampled with keyed draws."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from draftsmith.errors import DataError
from draftsmith.target.cache import PositionCache
from draftsmith.target.model import Target
from draftsmith.target.sampling import GREEDY, Sampling, choose, streams


def generate(
    target: Target,
    prompts: Sequence[Sequence[int]],
    *,
    max_new_tokens: int,
    sampling: Sampling = GREEDY,
    seeds: Sequence[int] = (),
) -> list[list[int]]:
    """Answers to `prompts` as token ids, the end token included when the model produced it.

    All prompts are decoded as one batch; callers choose batches of similar length. When sampling, row i draws from the
    stream of seeds[i], so an answer does not depend on its neighbours. Raises DataError if a prompt leaves no room.
    """
    answers: list[list[int]] = [[] for _ in prompts]
    for row, token in _tokens(target, prompts, max_new_tokens, sampling, seeds):
        answers[row].append(token)
    return answers


def prefill(
    target: Target, prompts: Sequence[Sequence[int]], capacity: int, *, capture: bool = False
) -> tuple[torch.Tensor, torch.Tensor | None, PositionCache]:
    """Run right-padded prompts: logits of each last token [B, V], hidden states [B, P, K*H], the filled cache."""
    lengths = torch.tensor([len(prompt) for prompt in prompts], device=target.device)
    input_ids_BP = torch.zeros(len(prompts), int(lengths.max()), dtype=torch.long, device=target.device)
    for row, prompt in enumerate(prompts):
        input_ids_BP[row, : len(prompt)] = torch.tensor(prompt)
    positions_BP = torch.arange(input_ids_BP.shape[1], device=target.device).expand_as(input_ids_BP)
    cache = PositionCache(capacity)
    last, place = torch.unique(lengths - 1, return_inverse=True)
    logits, hidden = target.forward(input_ids_BP, positions_BP, cache, keep=last, capture=capture)
    return logits[torch.arange(len(prompts)), place], hidden, cache


def check_room(target: Target, prompts: Sequence[Sequence[int]], *, max_new_tokens: int) -> None:
    """Raises DataError that names the first prompt which is empty, or too long for the target with its answer."""
    for number, prompt in enumerate(prompts, 1):
        if not prompt:
            raise DataError(f"prompt {number} of {len(prompts)} is empty; there is nothing to answer")
        if len(prompt) + max_new_tokens > target.max_length:
            raise DataError(
                f"prompt {number} of {len(prompts)} has {len(prompt)} tokens, which with max_new_tokens="
                f"{max_new_tokens} is beyond the {target.max_length} that {target.name} was made for; shorten one"
            )


def _tokens(
    target: Target, prompts: Sequence[Sequence[int]], max_new_tokens: int, sampling: Sampling, seeds: Sequence[int]
) -> Iterator[tuple[int, int]]:
    check_room(target, prompts, max_new_tokens=max_new_tokens)
    longest = max(len(prompt) for prompt in prompts)
    logits_BV, _, cache = prefill(target, prompts, longest + max_new_tokens)
    uniforms_RN = streams(sampling, seeds, "token", (len(prompts), max_new_tokens), target.device)
    rows = list(range(len(prompts)))  # the prompt that each row of the batch belongs to
    positions = [len(prompt) for prompt in prompts]
    for step in range(max_new_tokens):
        tokens = choose(logits_BV, sampling, uniforms_RN[rows, step], whose=f"target {target.name}").tolist()
        yield from zip(rows, tokens, strict=True)
        alive = [i for i, token in enumerate(tokens) if token not in target.eos_token_ids]
        if not alive or step + 1 == max_new_tokens:
            return
        if len(alive) < len(rows):
            cache.keep_rows(torch.tensor(alive, device=target.device))
            rows, positions, tokens = ([values[i] for i in alive] for values in (rows, positions, tokens))
        ids_B1 = torch.tensor(tokens, device=target.device)[:, None]
        logits_B1V, _ = target.forward(ids_B1, torch.tensor(positions, device=target.device)[:, None], cache)
        logits_BV = logits_B1V[:, 0]
        positions = [position + 1 for position in positions]
