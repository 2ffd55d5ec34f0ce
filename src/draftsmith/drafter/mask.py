"""Who may see whom. A block sees the target's hidden states strictly before its anchor, and itself; nothing else.

Strictly, because the hidden state at the anchor already nearly determines the next token and does not exist yet when
the block is drafted. Comparison is by position, never by block number: overlapping blocks must not see each other's
future. Keys are [context 0..C-1 | block 0 | block 1 | ...], queries are the blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from draftsmith.errors import ConfigError

Mask = torch.Tensor | BlockMask


def mask_builder(kind: Literal["auto", "dense", "flex"], device: torch.device) -> Callable[..., Mask]:
    """`dense_mask` or `flex_mask`. Raises ConfigError for flex on a CPU, where FlexAttention has no backward."""
    if kind == "flex" and device.type == "cpu":
        raise ConfigError("drafter.attention is flex, which cannot train on a CPU; set it to dense or auto")
    return flex_mask if kind == "flex" or (kind == "auto" and device.type == "cuda") else dense_mask


def attend(queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: Mask | None) -> torch.Tensor:
    """Attention over [B, heads, T, D] under either kind of mask; None lets every query see everything."""
    if isinstance(mask, BlockMask):
        kernel = _compiled_flex_attention() if queries.is_cuda else flex_attention
        return kernel(queries, keys, values, block_mask=mask)  # type: ignore[no-any-return]
    return F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask)


def dense_mask(anchors_BN: torch.Tensor, keep_BN: torch.Tensor, *, num_context: int, block_size: int) -> torch.Tensor:
    """Bool [B, 1, N*K, C + N*K], true where a query may look.

    Blocks that only fill up a row see themselves, so that no row of the softmax is empty; their weight is zero.
    """
    rows, num_anchors = anchors_BN.shape
    context = torch.arange(num_context, device=anchors_BN.device)
    sees_context_BNC = (context < anchors_BN[..., None]) & keep_BN[..., None]
    sees_context = sees_context_BNC.repeat_interleave(block_size, dim=1)
    block = torch.arange(num_anchors, device=anchors_BN.device).repeat_interleave(block_size)
    sees_block = (block[:, None] == block[None, :]).expand(rows, -1, -1)
    return torch.cat([sees_context, sees_block], dim=-1)[:, None]


def flex_mask(anchors_BN: torch.Tensor, keep_BN: torch.Tensor, *, num_context: int, block_size: int) -> BlockMask:
    """The same visibility as a BlockMask for FlexAttention (CUDA; there is no backward on CPU)."""
    num_queries = anchors_BN.shape[1] * block_size

    def sees(b: torch.Tensor, _head: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        block = query // block_size
        in_context = (key < anchors_BN[b, block]) & keep_BN[b, block] & (key < num_context)
        in_block = (key >= num_context) & ((key - num_context) // block_size == block)
        return in_context | in_block

    # H=None: one mask for all heads; a mask per head costs memory in proportion to them.
    return create_block_mask(
        sees,
        len(anchors_BN),
        None,
        num_queries,
        num_context + num_queries,
        device=anchors_BN.device,
        _compile=anchors_BN.is_cuda,  # otherwise the whole dense grid is evaluated
    )


@cache
def _compiled_flex_attention() -> Any:
    """Dynamic, because the number of anchors and tokens changes from batch to batch."""
    return torch.compile(flex_attention, dynamic=True)
