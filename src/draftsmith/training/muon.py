"""Muon: momentum whose every matrix is made nearly orthogonal before it is applied.

Source: Keller Jordan and others, https://kellerjordan.github.io/posts/muon/. torch has the same optimiser, tied to
bfloat16: on a processor without instructions for it, one step then takes a hundred times as long as the rest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch

from draftsmith.distributed import as_part_of, part, whole

MOMENTUM = 0.95
COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # steepest at zero; singular values end between about 0.7 and 1.2
SMALLEST_NORM = 1e-7


class Muon(torch.optim.Optimizer):
    """For matrices only. Iterates in `dtype`; the rate of an A x B matrix is multiplied by sqrt(max(1, A / B)).

    Of a matrix that is spread over ranks, each keeps its part of the momentum, gathers what is to be made orthogonal,
    and moves its part.
    """

    def __init__(
        self,
        matrices: Iterable[torch.Tensor],
        *,
        lr: float,
        weight_decay: float,
        num_iterations: int,
        dtype: torch.dtype,
    ) -> None:
        super().__init__(matrices, {"lr": lr, "weight_decay": weight_decay})
        self._num_iterations = num_iterations
        self._dtype = dtype

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """One step on all gradients. A closure is not supported."""
        assert closure is None
        for group in self.param_groups:
            for matrix in group["params"]:
                if matrix.grad is not None:
                    self._move(matrix, matrix.grad, lr=group["lr"], weight_decay=group["weight_decay"])

    def _move(self, matrix: torch.Tensor, gradient: torch.Tensor, *, lr: float, weight_decay: float) -> None:
        state = self.state[matrix]
        if not state:
            state["momentum_buffer"] = torch.zeros_like(gradient)
        buffer = state["momentum_buffer"].lerp_(gradient, 1 - MOMENTUM)
        ahead = gradient.lerp(buffer, MOMENTUM)  # Nesterov
        update = nearly_orthogonal(whole(ahead), num_iterations=self._num_iterations, dtype=self._dtype)
        rows, columns = matrix.shape
        part(matrix).mul_(1 - lr * weight_decay)
        part(matrix).add_(part(as_part_of(update, matrix)), alpha=-lr * math.sqrt(max(1, rows / columns)))


def nearly_orthogonal(matrix: torch.Tensor, *, num_iterations: int, dtype: torch.dtype) -> torch.Tensor:
    """Newton-Schulz: the same singular vectors, singular values near 1. Result [A, B] in `dtype`."""
    a, b, c = COEFFICIENTS
    wide = matrix.to(dtype, copy=True)
    if matrix.shape[0] > matrix.shape[1]:
        wide = wide.T
    wide /= wide.norm().clamp(min=SMALLEST_NORM)  # no singular value above 1
    for _ in range(num_iterations):
        gram = wide @ wide.T
        polynomial = torch.addmm(gram, gram, gram, beta=b, alpha=c)
        wide = torch.addmm(wide, polynomial, wide, beta=a)
    return wide.T if matrix.shape[0] > matrix.shape[1] else wide
