"""The nouns that travel between rooms. All are frozen; shapes are given with every array.

Legend: T tokens of one sample, B rows of a batch, S padded length of a batch, K tapped layers, H hidden size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Conversation:
    """One chat. `messages` are OpenAI-style dictionaries with at least `role` and `content`.

    `truncated` says that an answer was cut at a limit: the model did not end its turn there.
    """

    id: str
    messages: tuple[dict[str, Any], ...]
    tools: tuple[dict[str, Any], ...] = ()
    truncated: bool = False


@dataclass(frozen=True)
class RenderedText:
    """A chat that somebody has rendered with the target's template already, markers and all."""

    id: str
    text: str
    truncated: bool = False


@dataclass(frozen=True)
class Pretokenized:
    """A chat that somebody has tokenised already. input_ids: int32 [T]. loss_mask: bool [T]."""

    id: str
    input_ids: npt.NDArray[np.int32]
    loss_mask: npt.NDArray[np.bool_]
    truncated: bool = False


@dataclass(frozen=True)
class TokenizedSample:
    """A conversation as the target sees it.

    input_ids: int32 [T]. loss_mask: bool [T], true where the model itself would generate the token.
    """

    id: str
    input_ids: npt.NDArray[np.int32]
    loss_mask: npt.NDArray[np.bool_]


@dataclass(frozen=True)
class BatchSpec:
    """One planned batch: which samples, padded to what, at which place in an epoch of `num_batches`."""

    seq: int
    epoch: int
    bucket: int
    samples: tuple[int, ...]
    padded_length: int
    num_batches: int = 1

    @property
    def epochs(self) -> float:
        """Place in training, in passes over the data."""
        return self.epoch + self.seq / self.num_batches

    @property
    def num_slots(self) -> int:
        """Tokens that the target computes, padding included."""
        return len(self.samples) * self.padded_length


@dataclass(frozen=True)
class Batch:
    """A collated batch, right-padded.

    input_ids: int64 [B, S]. attention_mask, loss_mask: bool [B, S].
    """

    spec: BatchSpec
    input_ids: torch.Tensor
    attention_mask: torch.Tensor
    loss_mask: torch.Tensor

    def to(self, device: torch.device) -> Batch:
        """The same batch on another device. From pinned memory the copy is queued, not waited for."""
        tensors = (self.input_ids, self.attention_mask, self.loss_mask)
        return Batch(self.spec, *(tensor.to(device, non_blocking=tensor.is_pinned()) for tensor in tensors))

    def pinned(self) -> Batch:
        """The same batch in memory that a GPU can read while the processor goes on."""
        tensors = (self.input_ids, self.attention_mask, self.loss_mask)
        return Batch(self.spec, *(tensor.pin_memory() for tensor in tensors))


@dataclass(frozen=True)
class FeatureBatch:
    """A batch with the target's hidden states.

    target_hidden: [B, S, K*H], the outputs of the tapped layers side by side, in the order of `target_layer_ids`.
    """

    batch: Batch
    target_hidden: torch.Tensor
