"""Plain batched decoding: what the target answers without a drafter. Greedy, or sampled with keyed draws."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from draftsmith.target.cache import PositionCache
from draftsmith.target.model import Target


def generate(
    target: Target,
    prompts: Sequence[Sequence[int]],
    *,
    max_new_tokens: int,
    temperature: float = 0.0,
    seeds: Sequence[int] | None = None,
) -> list[list[int]]:
    """Answers to `prompts` as token ids, the end token included when the model produced it.

    All prompts are decoded as one batch; callers choose batches of similar length. With `temperature` > 0 row i draws
    from its own generator seeded by seeds[i], so an answer does not depend on its neighbours.
    """
    answers: list[list[int]] = [[] for _ in prompts]
    for row, token in _tokens(target, prompts, max_new_tokens, temperature, seeds):
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


def _tokens(
    target: Target,
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int,
    temperature: float,
    seeds: Sequence[int] | None,
) -> Iterator[tuple[int, int]]:
    longest = max(len(prompt) for prompt in prompts)
    logits_BV, _, cache = prefill(target, prompts, longest + max_new_tokens)
    generators = [torch.Generator().manual_seed(seed) for seed in seeds or []]
    rows = list(range(len(prompts)))  # the prompt that each row of the batch belongs to
    positions = [len(prompt) for prompt in prompts]
    for step in range(max_new_tokens):
        tokens = _pick(logits_BV, temperature, [generators[row] for row in rows] if temperature > 0 else [])
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


def _pick(logits_BV: torch.Tensor, temperature: float, generators: Sequence[torch.Generator]) -> list[int]:
    if temperature <= 0:
        return logits_BV.argmax(-1).tolist()
    probabilities = torch.softmax(logits_BV.float() / temperature, dim=-1).cpu()
    return [
        int(torch.multinomial(row, 1, generator=generator))
        for row, generator in zip(probabilities, generators, strict=True)
    ]
