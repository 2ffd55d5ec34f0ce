"""Which tensors a published drafter has: names, shapes and type, written down independently of the network's code.

Some engines skip tensors that they do not know and leave missing ones random, so a wrong name is never reported there.
It is refused here, before anything is published and again when it is read.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from draftsmith.drafter import Drafter, DrafterShape
from draftsmith.errors import ExportError

Shapes = dict[str, tuple[int, ...]]


def expected_tensors(shape: DrafterShape) -> Shapes:
    """Every tensor under its z-lab name and its shape: 11 per layer and 3 more."""
    hidden, inner = shape.hidden_size, shape.intermediate_size
    queries, keys = shape.num_attention_heads * shape.head_dim, shape.num_key_value_heads * shape.head_dim
    layer: Shapes = {
        "input_layernorm.weight": (hidden,),
        "self_attn.q_proj.weight": (queries, hidden),
        "self_attn.k_proj.weight": (keys, hidden),
        "self_attn.v_proj.weight": (keys, hidden),
        "self_attn.o_proj.weight": (hidden, queries),
        "self_attn.q_norm.weight": (shape.head_dim,),
        "self_attn.k_norm.weight": (shape.head_dim,),
        "post_attention_layernorm.weight": (hidden,),
        "mlp.gate_proj.weight": (inner, hidden),
        "mlp.up_proj.weight": (inner, hidden),
        "mlp.down_proj.weight": (hidden, inner),
    }
    tensors: Shapes = {
        "fc.weight": (hidden, len(shape.target_layer_ids) * hidden),
        "hidden_norm.weight": (hidden,),
        "norm.weight": (hidden,),
    }
    for index in range(shape.num_hidden_layers):
        tensors |= {f"layers.{index}.{name}": size for name, size in layer.items()}
    return tensors


def published_tensors(drafter: Drafter, dtype: torch.dtype = torch.bfloat16) -> dict[str, torch.Tensor]:
    """The drafter's tensors as they are published, on the CPU and checked."""
    tensors = {name: tensor.detach().to("cpu", dtype).contiguous() for name, tensor in drafter.state_dict().items()}
    check_tensors(tensors, expected_tensors(drafter.shape), dtype)
    return tensors


def check_tensors(tensors: Mapping[str, torch.Tensor], expected: Shapes, dtype: torch.dtype = torch.bfloat16) -> None:
    """Raises ExportError that names what is missing, superfluous, misshapen, of another type or not finite."""
    problems = [f"{name} is missing" for name in sorted(expected.keys() - tensors.keys())]
    problems += [f"{name} does not belong here" for name in sorted(tensors.keys() - expected.keys())]
    for name in sorted(expected.keys() & tensors.keys()):
        found = tensors[name]
        if tuple(found.shape) != expected[name]:
            problems.append(f"{name} has shape {tuple(found.shape)}, not {expected[name]}")
        if found.dtype != dtype:
            problems.append(f"{name} is {found.dtype}, not {dtype}".replace("torch.", ""))
        elif not bool(torch.isfinite(found).all()):
            problems.append(f"{name} has values that are not finite")
    if problems:
        raise ExportError("the tensors are not those of a DFlash drafter: " + "; ".join(problems[:5]))


def drafter_of(shape: DrafterShape, tensors: Mapping[str, torch.Tensor]) -> Drafter:
    """A drafter with these checked tensors, in their type."""
    dtype = next(iter(tensors.values())).dtype
    drafter = Drafter(shape).to(dtype)
    drafter.load_state_dict(dict(tensors))
    return drafter.eval()
