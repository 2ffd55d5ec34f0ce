"""The z-lab layout of a DFlash drafter: config.json and model.safetensors in bf16, names without a prefix.

Some engines skip tensors that they do not know and leave missing ones random, so a wrong name is never reported there.
It is refused here: names and shapes are asserted against a list written independently of the network's code.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from draftsmith.drafter import Drafter, DrafterShape
from draftsmith.errors import ExportError
from draftsmith.files import atomic_directory

WEIGHTS = "model.safetensors"


def expected_tensors(shape: DrafterShape) -> dict[str, tuple[int, ...]]:
    """Every tensor of the layout and its shape: 11 per layer and 3 more."""
    hidden, inner = shape.hidden_size, shape.intermediate_size
    queries, keys = shape.num_attention_heads * shape.head_dim, shape.num_key_value_heads * shape.head_dim
    layer: dict[str, tuple[int, ...]] = {
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
    tensors: dict[str, tuple[int, ...]] = {
        "fc.weight": (hidden, len(shape.target_layer_ids) * hidden),
        "hidden_norm.weight": (hidden,),
        "norm.weight": (hidden,),
    }
    for index in range(shape.num_hidden_layers):
        tensors |= {f"layers.{index}.{name}": size for name, size in layer.items()}
    return tensors


def export_drafter(drafter: Drafter, destination: Path, *, card: str, replace: bool = False) -> Path:
    """Write the drafter with a model card, read it back and compare; ExportError leaves nothing half-written."""
    tensors = {name: tensor.to("cpu", torch.bfloat16).contiguous() for name, tensor in drafter.state_dict().items()}
    _check_names(tensors, drafter.shape)
    if destination.exists() and not replace:
        raise ExportError(f"{destination} already exists; choose another directory, or remove it first")
    try:
        with atomic_directory(destination, replace=replace) as aside:
            save_file(tensors, aside / WEIGHTS, metadata={"format": "pt"})
            _write_json(aside / "config.json", drafter.shape.to_config())
            (aside / "README.md").write_text(card, encoding="utf-8")
            _compare(read_drafter(aside), tensors, drafter.shape)
    except (OSError, SafetensorError) as error:
        raise ExportError(f"the drafter cannot be written to {destination}: {error}") from error
    return destination


def read_drafter(directory: Path) -> Drafter:
    """A drafter in this layout, in bf16. Raises ExportError for missing files, other names, shapes or types."""
    try:
        config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
        tensors = load_file(directory / WEIGHTS)
    except (OSError, ValueError, SafetensorError) as error:
        raise ExportError(f"{directory} cannot be read as an exported drafter: {error}") from error
    shape = DrafterShape.from_config(config)
    _check_names(tensors, shape)
    drafter = Drafter(shape).to(torch.bfloat16)
    drafter.load_state_dict(tensors)
    return drafter.eval()


def _check_names(tensors: dict[str, torch.Tensor], shape: DrafterShape) -> None:
    expected = expected_tensors(shape)
    problems = [f"{name} is missing" for name in sorted(expected.keys() - tensors.keys())]
    problems += [f"{name} does not belong here" for name in sorted(tensors.keys() - expected.keys())]
    for name in sorted(expected.keys() & tensors.keys()):
        found = tensors[name]
        if tuple(found.shape) != expected[name]:
            problems.append(f"{name} has shape {tuple(found.shape)}, not {expected[name]}")
        if found.dtype != torch.bfloat16:
            problems.append(f"{name} is {found.dtype}, not bfloat16")
        elif not bool(torch.isfinite(found).all()):
            problems.append(f"{name} has values that are not finite")
    if problems:
        raise ExportError("the tensors are not those of a DFlash drafter: " + "; ".join(problems[:5]))


def _compare(written: Drafter, tensors: dict[str, torch.Tensor], shape: DrafterShape) -> None:
    if written.shape != shape:
        raise ExportError(f"config.json reads back as {written.shape}, written was {shape}")
    for name, tensor in written.state_dict().items():
        if not torch.equal(tensor, tensors[name]):
            raise ExportError(f"{name} does not read back as it was written")


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
