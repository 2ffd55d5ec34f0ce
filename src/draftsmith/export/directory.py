"""A drafter as config.json, model.safetensors and README.md: written aside, read back, compared, then published."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from draftsmith.drafter import Drafter, DrafterShape
from draftsmith.errors import ExportError, ModelError
from draftsmith.export.layouts import HF, Layout, Verifier, layout_of
from draftsmith.export.tensors import check_tensors, drafter_of, expected_tensors, published_tensors
from draftsmith.files import atomic_directory

WEIGHTS = "model.safetensors"


def export_drafter(
    drafter: Drafter,
    destination: Path,
    *,
    card: str,
    layout: Layout = HF,
    verifier: Verifier | None = None,
    target_tensors: Mapping[str, torch.Tensor] | None = None,
    replace: bool = False,
) -> Path:
    """Write the drafter with a model card, read it back and compare; ExportError leaves nothing half-written.

    target_tensors: embedding and head of the target, for layouts that carry them.
    """
    own = published_tensors(drafter)
    tensors = {layout.renamed.get(name, name): tensor for name, tensor in own.items()}
    tensors |= {name: t.detach().to("cpu", torch.bfloat16).clone() for name, t in (target_tensors or {}).items()}
    check_tensors(tensors, layout.expected(drafter.shape))
    config = layout.to_config(drafter.shape, verifier or Verifier(""))
    refuse_existing(destination, replace=replace)
    try:
        with atomic_directory(destination, replace=replace) as aside:
            save_file(tensors, aside / WEIGHTS, metadata={"format": "pt"})
            (aside / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
            (aside / "README.md").write_text(card, encoding="utf-8")
            _compare(aside, tensors, drafter.shape)
    except (OSError, SafetensorError) as error:
        raise ExportError(f"the drafter cannot be written to {destination}: {error}") from error
    return destination


def read_layout(directory: Path) -> Drafter:
    """A drafter in any of the layouts, in bf16. Raises ExportError for missing files, other names, shapes or types."""
    shape, layout, tensors = _read(directory)
    return drafter_of(shape, {name: tensors[layout.renamed.get(name, name)] for name in expected_tensors(shape)})


def refuse_existing(destination: Path, *, replace: bool = False) -> None:
    if destination.exists() and not replace:
        raise ExportError(f"{destination} already exists; choose another directory, or remove it first")


def _read(directory: Path) -> tuple[DrafterShape, Layout, dict[str, torch.Tensor]]:
    try:
        config: dict[str, Any] = json.loads((directory / "config.json").read_text(encoding="utf-8"))
        tensors = load_file(directory / WEIGHTS)
    except (OSError, ValueError, SafetensorError) as error:
        raise ExportError(f"{directory} cannot be read as an exported drafter: {error}") from error
    layout = layout_of(config)
    try:
        shape = layout.from_config(config)
    except (KeyError, TypeError) as error:
        raise ModelError(f"the drafter's config.json lacks {error}; it is not a DFlash drafter") from None
    check_tensors(tensors, layout.expected(shape))
    return shape, layout, tensors


def _compare(directory: Path, tensors: Mapping[str, torch.Tensor], shape: DrafterShape) -> None:
    written, _, found = _read(directory)
    if written != shape:
        raise ExportError(f"config.json reads back as {written}, written was {shape}")
    for name, tensor in tensors.items():
        if not torch.equal(found[name], tensor):
            raise ExportError(f"{name} does not read back as it was written")
