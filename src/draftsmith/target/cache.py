"""A key-value cache addressed by position: entry p of row b always holds token p of sequence b.

Speculative decoding rejects tokens. Here nothing has to be cropped: what lies beyond a row's newest token is never
visible to a query at a smaller position, and is overwritten when that position is reached. Rows of a batch may
therefore be at different lengths without any padding.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers.cache_utils import Cache


class PositionCache(Cache):  # type: ignore[misc]
    """Keys and values [B, heads, capacity, head_dim] per layer, allocated when a layer is first used.

    Call `place(positions)` before each forward: the tokens of that forward are stored at these positions.
    """

    def __init__(self, capacity: int) -> None:
        super().__init__(layers=[])
        self.capacity = capacity
        self.length = 0
        self._positions_BQ: torch.Tensor | None = None
        self._keys: dict[int, torch.Tensor] = {}
        self._values: dict[int, torch.Tensor] = {}

    def place(self, positions_BQ: torch.Tensor) -> None:
        """Announce where the next forward's tokens go. positions_BQ: int64 [B, Q], all below the capacity."""
        last = int(positions_BQ.max())
        if last >= self.capacity:
            raise IndexError(f"position {last} is beyond the cache's capacity of {self.capacity}")
        self._positions_BQ = positions_BQ
        self.length = max(self.length, last + 1)

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *_args: Any, **_kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store [B, heads, Q, head_dim] at the announced positions; return everything up to the longest row."""
        assert self._positions_BQ is not None, "place() comes before a forward"
        if layer_idx not in self._keys:
            num_rows, heads, _, head_dim = key_states.shape
            self._keys[layer_idx] = key_states.new_zeros(num_rows, heads, self.capacity, head_dim)
            self._values[layer_idx] = value_states.new_zeros(num_rows, heads, self.capacity, value_states.shape[-1])
        keys, values = self._keys[layer_idx], self._values[layer_idx]
        rows_B1 = torch.arange(len(keys), device=keys.device)[:, None]
        keys[rows_B1, :, self._positions_BQ] = key_states.transpose(1, 2)
        values[rows_B1, :, self._positions_BQ] = value_states.transpose(1, 2)
        return keys[:, :, : self.length], values[:, :, : self.length]

    def keep_rows(self, rows: torch.Tensor) -> None:
        """Drop all rows but these (int64 indices), in this order."""
        self._keys = {layer: keys[rows] for layer, keys in self._keys.items()}
        self._values = {layer: values[rows] for layer, values in self._values.items()}

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.length


def visible(positions_BQ: torch.Tensor, length: int, window: int | None = None) -> torch.Tensor:
    """Causal mask bool [B, 1, Q, length]: entry t is visible to position p if p - window < t <= p."""
    entries = torch.arange(length, device=positions_BQ.device)
    mask = entries <= positions_BQ[:, None, :, None]
    if window is not None:
        mask &= entries > positions_BQ[:, None, :, None] - window
    return mask
