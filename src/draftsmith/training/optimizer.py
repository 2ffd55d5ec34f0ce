"""Optimisers by shape of parameter, and the learning rate over the course of training."""

from __future__ import annotations

import math

import torch
from torch import nn

from draftsmith.config import TrainConfig
from draftsmith.target import DTYPES
from draftsmith.training.muon import Muon


def make_optimizers(drafter: nn.Module, config: TrainConfig) -> list[torch.optim.Optimizer]:
    """AdamW for everything, or Muon for matrices and AdamW for vectors. Parameters must be fp32 masters.

    Every group remembers its peak as `peak_lr`; `set_lr` scales it.
    """
    parameters = list(drafter.parameters())
    optimizers: list[torch.optim.Optimizer] = []
    rest = parameters
    if config.optimizer == "muon":
        matrices = [p for p in parameters if p.dim() == 2]
        rest = [p for p in parameters if p.dim() != 2]
        optimizers.append(
            Muon(
                matrices,
                lr=config.muon_lr,
                weight_decay=config.weight_decay,
                num_iterations=config.muon_steps,
                dtype=DTYPES[config.dtype],
            )
        )
    optimizers.append(torch.optim.AdamW(rest, lr=config.lr, betas=config.betas, weight_decay=config.weight_decay))
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["peak_lr"] = group["lr"]
    return optimizers


def set_lr(optimizers: list[torch.optim.Optimizer], factor: float) -> None:
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = group["peak_lr"] * factor


def lr_factor(progress: float, *, warmup: float, min_lr: float) -> float:
    """Share of the peak learning rate at `progress` in [0, 1]: linear warm-up, then cosine down to `min_lr`."""
    progress = min(max(progress, 0.0), 1.0)
    if progress < warmup:
        return max(progress / warmup, 0.01)  # the first step moves too
    rest = (progress - warmup) / (1 - warmup)
    return min_lr + (1 - min_lr) * 0.5 * (1 + math.cos(math.pi * rest))
