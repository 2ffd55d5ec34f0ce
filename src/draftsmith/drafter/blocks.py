"""Which blocks a sample is trained on: anchors, labels and weights, drawn by key.

A block starts at an anchor, a position whose token the target has just committed; slot k of the block predicts the
token k places after the anchor. Slot 0 holds the known token and is never trained.

Legend: B rows, S tokens, N anchors, K slots of a block (the block size).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from draftsmith.keyed import keyed_generator


@dataclass(frozen=True)
class Blocks:
    """Training blocks of a batch. Blocks that only fill up a row are not kept, and none of their slots is trained.

    anchors, keep: [B, N]. input_ids, labels: int64 [B, N, K]. trained: bool [B, N, K].
    """

    anchors_BN: torch.Tensor
    keep_BN: torch.Tensor
    input_ids_BNK: torch.Tensor
    labels_BNK: torch.Tensor
    trained_BNK: torch.Tensor

    @property
    def num_blocks(self) -> int:
        return int(self.keep_BN.sum())

    def positions_BQ(self) -> torch.Tensor:
        """Positions [B, N*K] of all slots: anchor + k."""
        slots = torch.arange(self.labels_BNK.shape[-1], device=self.anchors_BN.device)
        return (self.anchors_BN[..., None] + slots).flatten(1)


def draw_blocks(
    input_ids_BS: torch.Tensor,
    loss_mask_BS: torch.Tensor,
    *,
    block_size: int,
    num_anchors: int,
    mask_token_id: int,
    seed: int,
    epoch: int,
    samples: Sequence[int],
) -> Blocks:
    """Up to `num_anchors` blocks per row, without replacement, ascending.

    An anchor a needs loss_mask[a] and loss_mask[a+1]. The draw is keyed by (seed, epoch, sample), so it is fresh in
    every epoch and does not depend on the batch or rank a sample lands on. At least one slot per row always exists;
    a row without a valid anchor keeps it with weight zero.
    """
    drawn = [
        _draw_row(mask, num_anchors, keyed_generator(seed, "anchors", epoch, sample))
        for mask, sample in zip(loss_mask_BS.cpu().numpy(), samples, strict=True)
    ]
    width = max(1, max(len(row) for row in drawn))
    anchors_BN = torch.zeros(len(drawn), width, dtype=torch.long)
    keep_BN = torch.zeros(len(drawn), width, dtype=torch.bool)
    for row, anchors in enumerate(drawn):
        anchors_BN[row, : len(anchors)] = torch.from_numpy(anchors)
        keep_BN[row, : len(anchors)] = True
    return _blocks(input_ids_BS, loss_mask_BS, anchors_BN, keep_BN, block_size, mask_token_id)


def slot_weights(block_size: int, gamma: float | None = None) -> torch.Tensor:
    """Decay of the loss over slots [K]: 0 for slot 0, then exp(-(k-1)/gamma). Gamma by block size: 4, 5, 7 (DFlash)."""
    if gamma is None:
        gamma = 7.0 if block_size >= 16 else 5.0 if block_size >= 10 else 4.0 if block_size >= 8 else 2.0
    weights = torch.exp(-(torch.arange(block_size, dtype=torch.float32) - 1) / gamma)
    weights[0] = 0
    return weights


def _draw_row(loss_mask_S: np.ndarray, num_anchors: int, generator: np.random.Generator) -> np.ndarray:
    valid = np.flatnonzero(loss_mask_S[:-1] & loss_mask_S[1:])
    if len(valid) > num_anchors:
        valid = generator.choice(valid, num_anchors, replace=False)
    return np.sort(valid)


def _blocks(
    input_ids_BS: torch.Tensor,
    loss_mask_BS: torch.Tensor,
    anchors_BN: torch.Tensor,
    keep_BN: torch.Tensor,
    block_size: int,
    mask_token_id: int,
) -> Blocks:
    device = input_ids_BS.device
    anchors_BN, keep_BN = anchors_BN.to(device), keep_BN.to(device)
    positions_BNK = anchors_BN[..., None] + torch.arange(block_size, device=device)
    inside_BNK = positions_BNK < input_ids_BS.shape[1]
    rows = torch.arange(len(anchors_BN), device=device)[:, None, None]
    places_BNK = positions_BNK.clamp(max=input_ids_BS.shape[1] - 1)
    supervised_BNK = loss_mask_BS[rows, places_BNK] & inside_BNK & keep_BN[..., None]
    # Nothing after the first unsupervised token is trained: at inference a block is never used past the end of a turn.
    trained_BNK = supervised_BNK.long().cumprod(-1).bool()
    trained_BNK[..., 0] = False
    labels_BNK = input_ids_BS[rows, places_BNK]
    input_ids_BNK = torch.full_like(labels_BNK, mask_token_id)
    input_ids_BNK[..., 0] = torch.where(keep_BN, labels_BNK[..., 0], mask_token_id)
    return Blocks(anchors_BN, keep_BN, input_ids_BNK, labels_BNK, trained_BNK)
