"""A drafter's fp32 weights on disk: safetensors, the shape as JSON, and a manifest with hashes."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from draftsmith.drafter import Drafter, DrafterShape
from draftsmith.errors import CheckpointError
from draftsmith.files import atomic_directory, manifest_problem, write_manifest

WEIGHTS = "drafter.safetensors"
STATE = "state.json"


def save_checkpoint(run: Path, drafter: Drafter, state: dict[str, Any]) -> Path:
    """Write checkpoints/step-N aside, sync and rename it. `state` must hold `step`; it is kept as JSON.

    Raises CheckpointError if it cannot be written; older checkpoints stay.
    """
    directory = run / "checkpoints" / f"step-{state['step']:06d}"
    try:
        with atomic_directory(directory, replace=True) as aside:
            save_file({name: tensor.contiguous() for name, tensor in drafter.state_dict().items()}, aside / WEIGHTS)
            text = json.dumps({**state, "shape": drafter.shape.to_config()}, indent=2)
            (aside / STATE).write_text(text + "\n", encoding="utf-8")
            write_manifest(aside)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"checkpoint {directory} cannot be written: {error}") from error
    return directory


def load_checkpoint(run: Path) -> tuple[Drafter, dict[str, Any], Path]:
    """The newest checkpoint of a run whose files are as they were written: drafter, state, directory.

    Raises CheckpointError that says what is wrong with each candidate if there is none.
    """
    problems = []
    for directory in sorted((run / "checkpoints").glob("step-*"), key=_step_of, reverse=True):
        problem = manifest_problem(directory)
        if problem is None:
            state = json.loads((directory / STATE).read_text(encoding="utf-8"))
            drafter = Drafter(DrafterShape.from_config(state["shape"]))
            drafter.load_state_dict(load_file(directory / WEIGHTS))
            return drafter, state, directory
        problems.append(problem)
    detail = "; ".join(problems) if problems else f"there is no {run / 'checkpoints'}/step-*"
    raise CheckpointError(f"{run} has no checkpoint that can be used: {detail}")


def _step_of(directory: Path) -> tuple[int, str]:
    """By number, not by name: step-1000000 comes after step-999999."""
    return len(directory.name), directory.name


def params_sha256(drafter: torch.nn.Module) -> str:
    """One hash over names, shapes and bytes of all parameters, in order of names."""
    digest = hashlib.sha256()
    for name, tensor in sorted(drafter.state_dict().items()):
        digest.update(f"{name}{tuple(tensor.shape)}{tensor.dtype}".encode())
        digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
