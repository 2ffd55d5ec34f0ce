"""The loss of drafted blocks: cross-entropy, decayed over slots, as a numerator and a denominator.

Ranks and micro-batches add numerators and denominators before dividing, so a token weighs the same wherever it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from draftsmith.drafter.blocks import Blocks
from draftsmith.training.head import TrainingHead

DPACE_ALPHA = 0.5  # stable between 0.3 and 0.7 (arXiv:2605.18810)


@dataclass(frozen=True)
class LossParts:
    """numerator (with gradient) / denominator is the loss.

    num_correct, num_trained: float [K], per slot. accepted: summed teacher-forced acceptance length of the blocks,
    the token that verification adds included.
    """

    numerator: torch.Tensor
    denominator: torch.Tensor
    num_correct: torch.Tensor
    num_trained: torch.Tensor
    accepted: torch.Tensor


def block_loss(
    states_BQH: torch.Tensor,
    blocks: Blocks,
    head: TrainingHead,
    *,
    weights_K: torch.Tensor,
    kind: Literal["ce", "dpace"],
    chunk: int,
) -> LossParts:
    """Loss parts of drafter states [B, N*K, H]. Only trained slots reach the head, `chunk` positions at a time."""
    trained = blocks.trained_BNK
    states_TH = states_BQH.flatten(0, 1)[trained.flatten()]
    labels_T = head.labels(blocks.labels_BNK[trained])
    losses_T, correct_T = _cross_entropy(states_TH, labels_T, head, chunk)
    correct = torch.zeros_like(trained).masked_scatter(trained, correct_T)
    weights_BNK = weights_K.to(losses_T.device).expand(trained.shape)
    if kind == "dpace":
        losses_BNK = torch.zeros(trained.shape, device=losses_T.device).masked_scatter(trained, losses_T.detach())
        weights_BNK = dpace_weights(losses_BNK, trained)
    weights_T = weights_BNK[trained]
    return LossParts(
        numerator=(losses_T * weights_T).sum() + 0.0 * states_BQH.sum(),  # a batch without blocks still has gradients
        denominator=weights_T.sum(),
        num_correct=correct.sum((0, 1)).float(),
        num_trained=trained.sum((0, 1)).float(),
        accepted=(correct[..., 1:].long().cumprod(-1).sum() + blocks.keep_BN.sum()).float(),
    )


def dpace_weights(losses_BNK: torch.Tensor, trained_BNK: torch.Tensor) -> torch.Tensor:
    """D-PACE: a slot weighs what it can still add to the accepted prefix (arXiv:2605.18810). Detached.

    s_k = (1-alpha) exp(-CE_k) + alpha, C_k = s_1 ... s_k, weight_k = C_k + C_{k+1} + ...; untrained slots are left out.
    """
    keep = torch.where(trained_BNK, (1 - DPACE_ALPHA) * torch.exp(-losses_BNK.detach()) + DPACE_ALPHA, 1.0)
    reach = keep.cumprod(-1) * trained_BNK
    return reach.flip(-1).cumsum(-1).flip(-1) * trained_BNK


def _cross_entropy(
    states_TH: torch.Tensor, labels_T: torch.Tensor, head: TrainingHead, chunk: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Losses fp32 [T] and whether the greedy choice is the label, bool [T]."""
    if len(states_TH) <= chunk:
        return _chunk_cross_entropy(states_TH, labels_T, head)
    # Logits of a chunk are recomputed in the backward pass: whole, they would be the largest tensor of the step.
    pairs = [
        checkpoint(_chunk_cross_entropy, states, labels, head, use_reentrant=False)
        for states, labels in zip(torch.split(states_TH, chunk), torch.split(labels_T, chunk), strict=True)
    ]
    losses, correct = zip(*pairs, strict=True)
    return torch.cat(losses), torch.cat(correct)


def _chunk_cross_entropy(
    states_TH: torch.Tensor, labels_T: torch.Tensor, head: TrainingHead
) -> tuple[torch.Tensor, torch.Tensor]:
    logits_TR = F.linear(states_TH.to(head.weight.dtype), head.weight, head.bias).float()
    return F.cross_entropy(logits_TR, labels_T, reduction="none"), logits_TR.detach().argmax(-1) == labels_T
