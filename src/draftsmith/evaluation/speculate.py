"""Lossless speculative decoding: draft a block, verify it in one target forward, keep what the rule allows.

Greedy output equals the target's own greedy output, because a drafted token is committed only where it is the token
that the target chose, and the target's own choice follows it; rule.py says the same of sampling. Rows of a batch
advance independently: both caches are addressed by position, so a rejected token needs no cropping (see
target/cache.py).

Legend: R rows still running, K slots of a block or of its verified part, C context positions, V vocabulary, H hidden
size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch

from draftsmith.drafter import Drafter
from draftsmith.drafter.model import KeysValues
from draftsmith.errors import ModelError
from draftsmith.evaluation.rule import Referee, Rule
from draftsmith.target import PositionCache, Target, check_room, prefill


@dataclass(frozen=True)
class Decoded:
    """An answer, the end token included, and what every verification committed (accepted tokens plus the target's own).

    A verification that meets the end token counts up to it; one that is cut by our own limit counts whole. The first
    token comes from the prompt's forward and is in no verification.
    """

    tokens: list[int] = field(default_factory=list)
    committed: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Step:
    """What one forward added to the answer of `row`: first `num_drafted` accepted drafts, then the target's own token.

    num_committed: what counts for acceptance (see Decoded); 0 for the prompt's forward.
    """

    row: int
    tokens: list[int]
    num_drafted: int
    num_committed: int
    over: bool


ARGMAX = Rule()


def speculate(
    drafter: Drafter,
    target: Target,
    prompts: Sequence[Sequence[int]],
    *,
    max_new_tokens: int,
    rule: Rule = ARGMAX,
    seeds: Sequence[int] = (),
) -> list[Decoded]:
    """Answers to `prompts`, decoded as one batch; row i is sampled from the streams of seeds[i].

    Raises ModelError if drafter and target do not fit or one of them computes NaN, DataError if a prompt leaves no room
    for its answer.
    """
    answers = [Decoded() for _ in prompts]
    for step in steps(drafter, target, prompts, max_new_tokens=max_new_tokens, rule=rule, seeds=seeds):
        answers[step.row].tokens.extend(step.tokens)
        if step.num_committed:
            answers[step.row].committed.append(step.num_committed)
    return answers


@torch.no_grad()
def steps(
    drafter: Drafter,
    target: Target,
    prompts: Sequence[Sequence[int]],
    *,
    max_new_tokens: int,
    rule: Rule = ARGMAX,
    seeds: Sequence[int] = (),
) -> Iterator[Step]:
    """The same, forward by forward: what each row gains, as soon as it is known."""
    check_fit(drafter, target)
    check_room(target, prompts, max_new_tokens=max_new_tokens)
    block_size = drafter.shape.block_size
    width = min(rule.verify or block_size, block_size)
    starts = place = torch.tensor([len(prompt) for prompt in prompts], device=target.device)
    num_places = max_new_tokens + width  # the last block may reach beyond the last token
    referee = Referee(rule, seeds, (len(prompts), num_places), target=target.name, device=target.device)
    logits_RV, cache, context = _read_prompts(drafter, target, prompts, int(starts.max()) + num_places)
    newest = referee.first(logits_RV)  # the last committed token of each row, at position `place`
    rows, left = list(range(len(prompts))), [max_new_tokens] * len(prompts)
    news = [_step(row, [token], None, left, target) for row, token in zip(rows, newest.tolist(), strict=True)]
    while True:
        yield from news
        alive = [i for i, step in enumerate(news) if not step.over]
        if not alive:
            return
        if len(alive) < len(rows):
            kept = torch.tensor(alive, device=target.device)
            rows, newest, place, starts = [rows[i] for i in alive], newest[kept], place[kept], starts[kept]
            for part in (cache, context, referee):
                part.keep_rows(kept)
        num_slots = min(width, target.max_length - int(place.max()))
        positions_RK = place[:, None] + torch.arange(num_slots, device=place.device)
        index = place + 1 - starts
        drafts_RK, drafted_RKV = referee.drafts(_draft(drafter, target, newest, place, context, num_slots), index)
        block_RK = torch.cat([newest[:, None], drafts_RK], dim=1)
        logits_RKV, hidden_RKX = target.forward(block_RK, positions_RK, cache, capture=True)
        assert hidden_RKX is not None
        context.store(drafter.context(hidden_RKX, positions_RK), positions_RK)
        accepted, newest = referee.verdict(drafts_RK, drafted_RKV, logits_RKV, index)
        place = place + accepted + 1
        news = [
            _step(row, [*drafts[:count], own], count, left, target)
            for row, drafts, count, own in zip(
                rows, drafts_RK.tolist(), accepted.tolist(), newest.tolist(), strict=True
            )
        ]


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


def block_logits(
    drafter: Drafter,
    target: Target,
    block_RK: torch.Tensor,
    positions_RK: torch.Tensor,
    context: list[KeysValues],
    mask: torch.Tensor | None,
    *,
    num_slots: int | None = None,
) -> torch.Tensor:
    """Logits [R, num_slots - 1, V] of the drafts for slots 1, 2, ...: one drafter forward, then the target's head."""
    embedding = target.embedding(block_RK).to(drafter.fc.weight.dtype)
    states_RKH = drafter(embedding, positions_RK, context, mask)
    # Flattened, because a batched product with a slice copies the whole head for every row.
    states_TH = states_RKH[:, 1:num_slots].to(target.dtype).reshape(-1, drafter.shape.hidden_size)
    return target.head(states_TH).unflatten(0, (len(block_RK), -1))  # type: ignore[no-any-return]


def _read_prompts(
    drafter: Drafter, target: Target, prompts: Sequence[Sequence[int]], capacity: int
) -> tuple[torch.Tensor, PositionCache, _DraftContext]:
    """The prompts' forward: logits of each last token [R, V], and both caches filled."""
    logits_RV, hidden, cache = prefill(target, prompts, capacity, capture=True)
    assert hidden is not None
    context = _DraftContext(capacity)
    positions = torch.arange(hidden.shape[1], device=target.device).expand(len(prompts), -1)
    context.store(drafter.context(hidden, positions), positions)
    return logits_RV, cache, context


def _draft(
    drafter: Drafter,
    target: Target,
    newest_R: torch.Tensor,
    place_R: torch.Tensor,
    context: _DraftContext,
    num_slots: int,
) -> torch.Tensor:
    """Logits of the drafts after each row's newest token. The drafter always fills the block that it was trained on."""
    shape = drafter.shape
    block_RK = torch.full((len(newest_R), shape.block_size), shape.mask_token_id, device=newest_R.device)
    block_RK[:, 0] = newest_R
    length = int(place_R.max())
    sees_context = torch.arange(length, device=place_R.device) < place_R[:, None]
    sees_block = torch.ones(len(place_R), shape.block_size, dtype=torch.bool, device=place_R.device)
    mask = torch.cat([sees_context, sees_block], dim=1)[:, None, None].expand(-1, 1, shape.block_size, -1)
    positions_RK = place_R[:, None] + torch.arange(shape.block_size, device=place_R.device)
    return block_logits(drafter, target, block_RK, positions_RK, context.up_to(length), mask, num_slots=num_slots)


def _step(row: int, tokens: list[int], num_accepted: int | None, left: list[int], target: Target) -> Step:
    """Cut tokens at the end token and at what is left for the row, and count that down."""
    end = next((i for i, token in enumerate(tokens) if token in target.eos_token_ids), None)
    if end is not None:
        tokens = tokens[: end + 1]
    num_committed = 0 if num_accepted is None else len(tokens)
    tokens = tokens[: left[row]]
    left[row] -= len(tokens)
    return Step(row, tokens, min(num_accepted or 0, len(tokens)), num_committed, end is not None or left[row] == 0)
