"""Lossless speculative decoding: draft a block, verify it in one target forward, keep what agrees.

Greedy output equals the target's own greedy output, because a drafted token is committed only where it is the token
that the target chose, and the target's own choice follows it. Rows of a batch advance independently: both caches are
addressed by position, so a rejected token needs no cropping (see target/cache.py).

Legend: R rows still running, K block size, C context positions, V vocabulary, H hidden size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from draftsmith.drafter import Drafter
from draftsmith.drafter.model import KeysValues
from draftsmith.errors import ModelError
from draftsmith.target import Target, prefill


@dataclass(frozen=True)
class Decoded:
    """An answer, the end token included, and what every verification committed (accepted tokens plus the target's own).

    A verification that meets the end token counts up to it; one that is cut by our own limit counts whole. The first
    token comes from the prompt's forward and is in no verification.
    """

    tokens: list[int] = field(default_factory=list)
    committed: list[int] = field(default_factory=list)


class _DraftContext:
    """Keys and values of every drafter layer at their positions: [R, kv heads, capacity, D]."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._layers: list[KeysValues] = []

    def store(self, fresh: list[KeysValues], positions_RQ: torch.Tensor) -> None:
        if not self._layers:
            self._layers = [
                (
                    k.new_zeros(*k.shape[:2], self.capacity, k.shape[3]),
                    v.new_zeros(*v.shape[:2], self.capacity, v.shape[3]),
                )
                for k, v in fresh
            ]
        rows_R1 = torch.arange(len(positions_RQ), device=positions_RQ.device)[:, None]
        for (keys, values), (new_keys, new_values) in zip(self._layers, fresh, strict=True):
            keys[rows_R1, :, positions_RQ] = new_keys.transpose(1, 2)
            values[rows_R1, :, positions_RQ] = new_values.transpose(1, 2)

    def up_to(self, length: int) -> list[KeysValues]:
        return [(keys[:, :, :length], values[:, :, :length]) for keys, values in self._layers]

    def keep_rows(self, rows: torch.Tensor) -> None:
        self._layers = [(keys[rows], values[rows]) for keys, values in self._layers]


@torch.no_grad()
def speculate(
    drafter: Drafter, target: Target, prompts: Sequence[Sequence[int]], *, max_new_tokens: int
) -> list[Decoded]:
    """Greedy answers to `prompts`, decoded as one batch. Raises ModelError if drafter and target do not fit."""
    check_fit(drafter, target)
    block_size = drafter.shape.block_size
    capacity = max(len(prompt) for prompt in prompts) + max_new_tokens + block_size
    logits_RV, hidden, cache = prefill(target, prompts, capacity, capture=True)
    assert hidden is not None
    context = _DraftContext(capacity)
    positions = torch.arange(hidden.shape[1], device=target.device).expand(len(prompts), -1)
    context.store(drafter.context(hidden, positions), positions)

    answers = [Decoded() for _ in prompts]
    newest = logits_RV.argmax(-1)  # the last committed token of each row, at position `place`
    place = torch.tensor([len(prompt) for prompt in prompts], device=target.device)
    rows = list(range(len(prompts)))
    done = [_commit(answers[row], [token], max_new_tokens, target) for row, token in enumerate(newest.tolist())]
    while True:
        alive = [i for i, over in enumerate(done) if not over]
        if not alive:
            return answers
        if len(alive) < len(rows):
            kept = torch.tensor(alive, device=target.device)
            rows, newest, place = [rows[i] for i in alive], newest[kept], place[kept]
            cache.keep_rows(kept)
            context.keep_rows(kept)
        block_RK = _draft(drafter, target, newest, place, context)
        positions_RK = place[:, None] + torch.arange(block_size, device=place.device)
        logits_RKV, hidden_RKX = target.forward(block_RK, positions_RK, cache, capture=True)
        assert hidden_RKX is not None
        context.store(drafter.context(hidden_RKX, positions_RK), positions_RK)
        chosen_RK = logits_RKV.argmax(-1)
        accepted = (block_RK[:, 1:] == chosen_RK[:, :-1]).long().cumprod(-1).sum(-1)
        newest = chosen_RK.gather(1, accepted[:, None])[:, 0]
        place = place + accepted + 1
        done = []
        for row, tokens, count in zip(rows, chosen_RK.tolist(), accepted.tolist(), strict=True):
            # Accepted drafts equal the target's choices, so the committed tokens are simply these.
            done.append(_commit(answers[row], tokens[: count + 1], max_new_tokens, target, verified=True))


def check_fit(drafter: Drafter, target: Target) -> None:
    """Raises ModelError naming both values if the drafter was made for another target."""
    shape = drafter.shape
    pairs = {
        "hidden size": (shape.hidden_size, target.hidden_size),
        "vocabulary": (shape.vocab_size, target.vocab_size),
        "number of layers": (shape.num_target_layers, target.num_layers),
        "tapped layers": (list(shape.target_layer_ids), list(target.layer_ids)),
    }
    for name, (ours, theirs) in pairs.items():
        if ours != theirs:
            raise ModelError(
                f"the drafter was made for a target with {name} {ours}, but {target.name} has {theirs}; "
                "use the target that it was trained on"
            )


def _draft(
    drafter: Drafter, target: Target, newest_R: torch.Tensor, place_R: torch.Tensor, context: _DraftContext
) -> torch.Tensor:
    """Blocks [R, K]: the newest token and K-1 greedy drafts."""
    shape = drafter.shape
    block_RK = torch.full((len(newest_R), shape.block_size), shape.mask_token_id, device=newest_R.device)
    block_RK[:, 0] = newest_R
    length = int(place_R.max())
    sees_context = torch.arange(length, device=place_R.device) < place_R[:, None]
    sees_block = torch.ones(len(place_R), shape.block_size, dtype=torch.bool, device=place_R.device)
    mask = torch.cat([sees_context, sees_block], dim=1)[:, None, None].expand(-1, 1, shape.block_size, -1)
    positions_RK = place_R[:, None] + torch.arange(shape.block_size, device=place_R.device)
    block_RK[:, 1:] = fill_block(drafter, target, block_RK, positions_RK, context.up_to(length), mask)
    return block_RK


def fill_block(
    drafter: Drafter,
    target: Target,
    block_RK: torch.Tensor,
    positions_RK: torch.Tensor,
    context: list[KeysValues],
    mask: torch.Tensor | None,
) -> torch.Tensor:
    """Greedy drafts [R, K-1] for slots 1 to K-1: one drafter forward, then the target's head."""
    embedding = target.embedding(block_RK).to(drafter.fc.weight.dtype)
    states_RKH = drafter(embedding, positions_RK, context, mask)
    # Flattened, because a batched product with a slice copies the whole head for every row.
    states_TH = states_RKH[:, 1:].to(target.dtype).reshape(-1, drafter.shape.hidden_size)
    return target.head(states_TH).argmax(-1).view(len(block_RK), -1)  # type: ignore[no-any-return]


def _commit(answer: Decoded, tokens: list[int], max_new_tokens: int, target: Target, *, verified: bool = False) -> bool:
    """Append tokens up to the end token and the limit; true when the answer is complete."""
    end = next((i for i, token in enumerate(tokens) if token in target.eos_token_ids), None)
    if end is not None:
        tokens = tokens[: end + 1]
    if verified:
        answer.committed.append(len(tokens))
    answer.tokens.extend(tokens[: max_new_tokens - len(answer.tokens)])
    return end is not None or len(answer.tokens) >= max_new_tokens
