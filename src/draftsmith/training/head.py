"""The language-model head during training: whole, or the rows that matter plus random ones.

A small data set uses a small part of a vocabulary. A head of the tokens that occur in it, plus random rows, learns the
same at a fraction of the cost; the random rows are redrawn again and again, because rows that are never seen as
negatives would win once the whole vocabulary is used. Decoding always uses the whole vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from draftsmith.keyed import keyed_generator


@dataclass(frozen=True)
class TrainingHead:
    """weight: [R, H]. rows: int64 [R], ascending vocabulary ids of the rows, or None for the whole vocabulary."""

    weight: torch.Tensor
    bias: torch.Tensor | None
    rows: torch.Tensor | None

    def labels(self, token_ids: torch.Tensor) -> torch.Tensor:
        """Vocabulary ids -> row numbers. Every id must be among the rows."""
        return token_ids if self.rows is None else torch.searchsorted(self.rows, token_ids)


def head_for_step(
    weight_VH: torch.Tensor,
    bias_V: torch.Tensor | None,
    *,
    seen: npt.NDArray[np.int64] | None,
    num_negatives: int,
    seed: int,
    draw: int,
) -> TrainingHead:
    """The head of draw number `draw`: rows `seen` and `num_negatives` others, or everything if `seen` is None."""
    if seen is None or len(seen) + num_negatives >= len(weight_VH):
        return TrainingHead(weight_VH, bias_V, None)
    unseen = np.setdiff1d(np.arange(len(weight_VH)), seen, assume_unique=True)
    negatives = keyed_generator(seed, "negatives", draw).choice(unseen, num_negatives, replace=False)
    rows = torch.from_numpy(np.sort(np.concatenate([seen, negatives]))).to(weight_VH.device)
    return TrainingHead(weight_VH[rows], None if bias_V is None else bias_V[rows], rows)
