"""Tensors on pages of their own, for hidden states that wait on the CPU."""

from __future__ import annotations

import math

import torch

from draftsmith.flow import pages

SMALLEST_BYTES = 2**20  # below this a call into the kernel costs more than what malloc keeps


def paged_zeros(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    """Zeros on the CPU whose memory goes back to the system when the tensor does; see flow/pages.py."""
    num_bytes = math.prod(shape) * dtype.itemsize
    if num_bytes < SMALLEST_BYTES:
        return torch.zeros(shape, dtype=dtype)
    return torch.frombuffer(pages(num_bytes), dtype=dtype).view(shape)
