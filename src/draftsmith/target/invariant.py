"""Attention whose result for a token depends on the tokens before it and on nothing else, to the last bit.

On a processor, products give the same bits whatever else is in the batch, but the attention kernel cuts its work by
the length of the row: the hidden states of a sample padded to 100 tokens differ in the last bits from those of the same
sample padded to 130. Here queries are taken 64 at a time, each block with the keys up to its own end, so every call has
a shape that follows from the place in the row alone. Whatever batch a sample comes in, its hidden states are the same;
that is what lets them be kept on disk without changing a single bit of training.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

BLOCK = 64


@contextmanager
def length_invariant(device: torch.device) -> Iterator[None]:
    """Within this block, on a processor, attention of the calling thread does not depend on the padded length.

    On a GPU nothing changes: there the products themselves depend on the number of rows.
    """
    if device.type != "cpu":
        yield
        return
    with _BlockwiseAttention():
        yield


class _BlockwiseAttention(TorchFunctionMode):
    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func is F.scaled_dot_product_attention:
            return causal_attention(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def causal_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """Attention [B, N, S, D]: in blocks of queries if it is causal, with or without a boolean mask; else as it is."""
    settings: dict[str, Any] = {"dropout_p": dropout_p, "scale": scale, "enable_gqa": enable_gqa}
    length = query.shape[2]
    padding = -length % BLOCK
    seen = torch.ones(length, length, dtype=torch.bool).tril()
    if length != key.shape[2] or not _is_causal(attn_mask, is_causal, seen):
        return F.scaled_dot_product_attention(query, key, value, attn_mask=attn_mask, is_causal=is_causal, **settings)
    query, key, value = (F.pad(tensor, (0, 0, 0, padding)) for tensor in (query, key, value))
    seen = F.pad(seen if attn_mask is None else attn_mask, (0, padding, 0, padding), value=False)
    blocks = []
    for start in range(0, length, BLOCK):
        stop = start + BLOCK
        blocks.append(
            F.scaled_dot_product_attention(
                query[:, :, start:stop],
                key[:, :, :stop],
                value[:, :, :stop],
                attn_mask=seen[..., start:stop, :stop],
                **settings,
            )
        )
    return torch.cat(blocks, dim=2)[:, :, :length]


def _is_causal(attn_mask: torch.Tensor | None, is_causal: bool, seen: torch.Tensor) -> bool:
    if attn_mask is None:
        return is_causal
    return attn_mask.dtype == torch.bool and not bool((attn_mask & ~seen).any())
