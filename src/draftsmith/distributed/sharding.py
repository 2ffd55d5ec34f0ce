"""A module that is spread over the ranks with FSDP2: each keeps a part of every parameter, gradient and moment.

Parts are made along the first dimension. A unit, such as a layer, is whole on a rank only while it computes. Outside of
a pass a parameter is a DTensor; nobody above this file asks for more than `whole`, `part` and `as_part_of`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, distribute_tensor

from draftsmith.distributed.peers import lost_rank_named


def shard(module: nn.Module, units: Iterable[nn.Module], *, method: str, device: torch.device) -> None:
    """Spread a module, the same on all ranks, over them, and onto `device`; parameters are others afterwards.

    method: of the module and of each unit, what a pass calls. It gathers a unit's parameters before it computes and
    drops them after; so does the backward pass. Gradients are summed, not averaged: losses are divided by their weight
    later.
    """
    if device.type == "cuda":
        torch.cuda.set_device(device)  # FSDP2 takes the current one
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    for each in (*units, module):
        fully_shard(each, mesh=mesh)
        register_fsdp_forward_method(each, method)
        assert isinstance(each, FSDPModule)
        each.set_gradient_divide_factor(1.0)
        each.set_force_sum_reduction_for_comms(True)  # gloo knows no other way


def is_sharded(module: nn.Module) -> bool:
    return isinstance(module, FSDPModule)


@contextmanager
def shared_pass(module: nn.Module, *, last: bool) -> Iterator[None]:
    """One forward and backward pass, which all ranks make at the same time. Raises RankError where one has gone.

    Gradients are summed up, and spread, with the `last` pass of a step alone. Until then every rank keeps whole ones of
    what it has added up: passes in between send parameters only, and cost the memory of whole gradients. A step of one
    batch per rank never has them.
    """
    assert isinstance(module, FSDPModule)
    module.set_requires_gradient_sync(last)
    with lost_rank_named("a pass was cut short"):
        yield


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """All parts of a tensor, put together on every rank; all of them must call it. A tensor without parts is whole."""
    if not isinstance(tensor, DTensor):
        return tensor
    with torch.no_grad(), lost_rank_named("parts cannot be put together"):
        complete: torch.Tensor = tensor.full_tensor()
        return complete


def part(tensor: torch.Tensor) -> torch.Tensor:
    """What this rank has of a tensor: changing it in place changes the tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def as_part_of(tensor: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """A whole tensor laid out like another one of its shape; nothing is sent."""
    if not isinstance(like, DTensor):
        return tensor
    return distribute_tensor(tensor.to(like.device), like.device_mesh, like.placements, src_data_rank=None)
