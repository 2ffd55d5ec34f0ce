"""The rule of acceptance: which drafted tokens are kept, and what the target says instead of the first that is not.

With argmax drafts the target chooses a token after every slot, greedily or by a keyed draw, and drafts are kept while
they are what it chose. What is committed is then always the target's own choice, so sampled answers equal, token by
token, those of plain sampling with the same seed. It is rejection sampling with a proposal of one point.

With sampled drafts token d, drafted with probability q(d), is kept with probability min(1, p(d)/q(d)); the first that
is not is replaced by a draw from max(p - q, 0) (Leviathan et al., https://arxiv.org/abs/2211.17192). The distribution
is the target's as well, the single answers are others. Slots of a block are drafted independently of each other, so
sampled drafts hang together less and fewer are kept.

Each decision about token i of an answer uses the i-th number of a stream of its own: the number that replaces a draft
never is the one that drew or refused it.

Legend: R rows, K slots of a verification, V vocabulary, N tokens of an answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from draftsmith.target import GREEDY, Sampling, choose, draw, most_likely, probabilities, streams

PURPOSES = ("token", "draft", "accept", "replace")


@dataclass(frozen=True)
class Rule:
    """How tokens are drafted, how many of a block are verified, and how the target chooses.

    verify: tokens of one verification, the known one included; by default the whole block.
    """

    sampling: Sampling = GREEDY
    draft: Literal["argmax", "sampled"] = "argmax"
    verify: int | None = None

    @property
    def samples_drafts(self) -> bool:
        return self.draft == "sampled" and self.sampling.temperature > 0


class Referee:
    """A rule at work on a batch: it keeps every row's streams. `index` is the place in the answer of a slot's token."""

    def __init__(self, rule: Rule, seeds: Sequence[int], shape: tuple[int, int], *, target: str, device: torch.device):
        self._rule, self._target = rule, f"target {target}"
        self._streams_RN = {
            purpose: streams(rule.sampling, seeds, purpose, shape, device)
            for purpose in (PURPOSES if rule.samples_drafts else PURPOSES[:1])
        }

    def keep_rows(self, rows: torch.Tensor) -> None:
        self._streams_RN = {purpose: stream[rows] for purpose, stream in self._streams_RN.items()}

    def first(self, logits_RV: torch.Tensor) -> torch.Tensor:
        """The first token [R] of each answer, from the prompt's logits."""
        return choose(logits_RV, self._rule.sampling, self._streams_RN["token"][:, 0], whose=self._target)

    def drafts(self, logits_RKV: torch.Tensor, index_R: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Drafted ids [R, K] from the drafter's logits, and their distributions if they were drawn."""
        if not self._rule.samples_drafts:
            return most_likely(logits_RKV, whose="the drafter"), None
        shares_RKV = probabilities(logits_RKV, self._rule.sampling, whose="the drafter")
        return draw(shares_RKV, self._uniforms("draft", index_R, logits_RKV.shape[1])), shares_RKV

    def verdict(
        self, drafts_RK: torch.Tensor, drafted_RKV: torch.Tensor | None, logits_RKV: torch.Tensor, index_R: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """How many drafts are kept [R], and the target's own token [R] after them.

        logits: one slot more than there are drafts; slot k decides on draft k.
        """
        if drafted_RKV is not None:
            return self._rejection(drafts_RK, drafted_RKV, logits_RKV, index_R)
        uniforms_RK = self._uniforms("token", index_R, logits_RKV.shape[1])
        chosen_RK = choose(logits_RKV, self._rule.sampling, uniforms_RK, whose=self._target)
        kept_R = _leading(drafts_RK == chosen_RK[:, :-1])
        return kept_R, chosen_RK.gather(1, kept_R[:, None])[:, 0]

    def _rejection(
        self, drafts_RK: torch.Tensor, drafted_RKV: torch.Tensor, logits_RKV: torch.Tensor, index_R: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        shares_RKV = probabilities(logits_RKV, self._rule.sampling, whose=self._target)
        p_RK = shares_RKV[:, :-1].gather(2, drafts_RK[..., None])[..., 0]
        q_RK = drafted_RKV.gather(2, drafts_RK[..., None])[..., 0]
        kept_R = _leading(self._uniforms("accept", index_R, drafts_RK.shape[1]) * q_RK < p_RK)
        # After the last draft nothing was proposed, so nothing is subtracted.
        proposed_RKV = torch.cat([drafted_RKV, torch.zeros_like(shares_RKV[:, :1])], dim=1)
        rows = torch.arange(len(kept_R), device=kept_R.device)
        own_RV = shares_RKV[rows, kept_R]
        left_RV = (own_RV - proposed_RKV[rows, kept_R]).clamp(min=0)
        left_RV = torch.where(left_RV.sum(-1, keepdim=True) > 0, left_RV, own_RV)  # p = q but for rounding
        return kept_R, draw(left_RV, self._uniforms("replace", index_R + kept_R, 1)[:, 0])

    def _uniforms(self, purpose: str, index_R: torch.Tensor, num: int) -> torch.Tensor:
        places_RK = index_R[:, None] + torch.arange(num, device=index_R.device)
        return self._streams_RN[purpose].gather(1, places_RK)


def _leading(agrees_RK: torch.Tensor) -> torch.Tensor:
    return agrees_RK.long().cumprod(-1).sum(-1)
