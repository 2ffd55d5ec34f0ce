"""Muon against torch's own where that exists, and against the singular value decomposition."""

from __future__ import annotations

import pytest
import torch

from draftsmith.training.muon import Muon, nearly_orthogonal


@pytest.mark.parametrize("shape", [(24, 24), (48, 16), (16, 48)])
def test_muon_in_bfloat16_is_the_one_of_torch_to_the_bit(shape: tuple[int, int]) -> None:
    generator = torch.Generator().manual_seed(0)
    ours, theirs = (torch.nn.Parameter(torch.ones(shape)) for _ in range(2))
    mine = Muon([ours], lr=0.02, weight_decay=0.1, num_iterations=5, dtype=torch.bfloat16)
    reference = torch.optim.Muon([theirs], lr=0.02, weight_decay=0.1, momentum=0.95, ns_steps=5)
    for _ in range(6):
        ours.grad = torch.randn(shape, generator=generator)
        theirs.grad = ours.grad.clone()
        mine.step()
        reference.step()
        assert torch.equal(ours, theirs)
    assert not torch.equal(ours, torch.ones(shape))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(32, 32), (96, 24), (24, 96)])
def test_singular_vectors_stay_and_singular_values_come_near_one(shape: tuple[int, int], dtype: torch.dtype) -> None:
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    before = matrix.clone()
    left, _, right = torch.linalg.svd(matrix, full_matrices=False)
    middle = left.T @ nearly_orthogonal(matrix, num_iterations=5, dtype=dtype).float() @ right.T
    values = middle.diagonal()
    tolerance = 1e-3 if dtype is torch.float32 else 5e-2
    assert (middle - values.diag()).abs().max() < tolerance
    assert values.min() > 0.3
    assert values.max() < 1.3
    assert torch.equal(matrix, before)


def test_a_gradient_of_zeros_moves_nothing() -> None:
    matrix = torch.nn.Parameter(torch.ones(8, 4))
    matrix.grad = torch.zeros(8, 4)
    Muon([matrix], lr=0.02, weight_decay=0.0, num_iterations=5, dtype=torch.float32).step()
    assert torch.equal(matrix, torch.ones(8, 4))
