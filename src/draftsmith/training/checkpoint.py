"""Everything that training needs to go on, on disk: safetensors, JSON and a manifest with hashes.

    checkpoints/step-000123/
        drafter.safetensors    fp32 weights, which are the masters
        optimizer.safetensors  moments of the optimisers, `<parameter>/<moment>`
        state.json             step, place in the plan, counts, guards, and what the run must not change
        MANIFEST.json          sizes and SHA-256 of the above
    checkpoints/LATEST         a hint for people and scripts; nothing here trusts it

Tensors are whole and named by parameter: nothing depends on devices, on ranks or on how they share a drafter. What is
spread over ranks is put together by all of them, a tensor at a time. No random state: draws are keyed.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file

from draftsmith.distributed import as_part_of, whole
from draftsmith.drafter import Drafter, DrafterShape
from draftsmith.errors import CheckpointError, DraftsmithError, ModelError
from draftsmith.files import atomic_directory, atomic_write, manifest_problem, write_manifest
from draftsmith.training.guards import Guards
from draftsmith.training.step import TrainState

WEIGHTS = "drafter.safetensors"
MOMENTS = "optimizer.safetensors"
STATE = "state.json"
LATEST = "LATEST"
FORMAT = 1  # raise it when an older reader would misread what is written
STEP_NAME = re.compile(r"step-(\d{6,})")
COUNTS = ("epoch", "seq", "num_anchors", "num_context_tokens")


@dataclass(frozen=True)
class Snapshot:
    """A copy of a training state between two steps, on the CPU, that later steps do not change."""

    step: int
    weights: dict[str, torch.Tensor] = field(repr=False)
    moments: dict[str, torch.Tensor] = field(repr=False)
    record: dict[str, Any] = field(repr=False)


def take_snapshot(state: TrainState, facts: dict[str, Any]) -> Snapshot:
    """Copy `state`, between two steps; `facts` are kept beside it as JSON.

    Raises CheckpointError if an update was interrupted, or a weight is not finite: such a state is never saved.
    """
    if state.is_torn:
        raise CheckpointError(f"the update after step {state.step} was interrupted; its weights are not saved")
    weights = {name: _copied(tensor) for name, tensor in state.drafter.state_dict().items()}
    broken = [name for name, tensor in weights.items() if not bool(tensor.isfinite().all())]
    if broken:
        raise CheckpointError(f"step {state.step} has weights that are not finite ({broken[0]}); it is not saved")
    record = {
        "format": FORMAT,
        "step": state.step,
        "counts": {name: getattr(state, name) for name in COUNTS},
        "seconds": state.seconds,
        "acceptance": {str(step): length for step, length in state.acceptance.items()},
        "guards": state.guards.to_json(),
        "shape": state.drafter.shape.to_config(),
        **facts,
    }
    moments = {name: _copied(tensor) for name, tensor in _moments(state).items()}
    return Snapshot(state.step, weights, moments, record)


def take_part(state: TrainState, *, moments: bool = True) -> None:
    """On a rank that keeps no copy, while another one does: give parts of a drafter that is spread over ranks."""
    for tensor in (*state.drafter.state_dict().values(), *(_moments(state).values() if moments else ())):
        whole(tensor)


def write_snapshot(run: Path, snapshot: Snapshot) -> Path:
    """Write checkpoints/step-N aside, sync, rename, point LATEST at it, and read it back. Older checkpoints stay.

    Raises CheckpointError if it cannot be written or does not read back as it was written.
    """
    directory = step_directory(run, snapshot.step)
    try:
        with atomic_directory(directory) as aside:
            save_file(snapshot.weights, aside / WEIGHTS)
            save_file(snapshot.moments, aside / MOMENTS)
            (aside / STATE).write_text(json.dumps(snapshot.record, allow_nan=False) + "\n", encoding="utf-8")
            write_manifest(aside)
        atomic_write(directory.parent / LATEST, directory.name + "\n")
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"checkpoint {directory} cannot be written: {error}") from error
    problem = manifest_problem(directory)
    if problem is not None:
        raise CheckpointError(f"checkpoint {directory} does not read back as it was written: {problem}")
    return directory


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint whose files are as they were written."""

    directory: Path
    record: dict[str, Any] = field(repr=False)

    @property
    def step(self) -> int:
        return int(self.record["step"])

    def drafter(self) -> Drafter:
        """The drafter in fp32, on the CPU."""
        drafter = Drafter(DrafterShape.from_config(self.record["shape"]))
        drafter.load_state_dict(load_file(self.directory / WEIGHTS))
        return drafter

    def restore(self, state: TrainState) -> None:
        """Make a new training state the one that was saved."""
        try:
            load_whole(state.drafter, load_file(self.directory / WEIGHTS))
            _restore_moments(state, load_file(self.directory / MOMENTS))
            state.step = self.step
            for name in COUNTS:
                setattr(state, name, int(self.record["counts"][name]))
            state.seconds = float(self.record["seconds"])
            state.acceptance = {int(step): float(length) for step, length in self.record["acceptance"].items()}
            state.guards = Guards.from_json(self.record["guards"])
        except (OSError, SafetensorError, RuntimeError, LookupError, TypeError, ValueError) as error:
            raise CheckpointError(f"{self.directory} does not hold what training needs: {error}") from error


def open_checkpoint(directory: Path) -> Checkpoint:
    """Verify every hash. Raises CheckpointError that names the file and what is wrong with it."""
    problem = manifest_problem(directory)
    if problem is not None:
        raise CheckpointError(problem)
    try:
        record = dict(json.loads((directory / STATE).read_text(encoding="utf-8")))
        if record["format"] != FORMAT:
            raise CheckpointError(f"{directory} has format {record['format']}, this version reads {FORMAT}")
        checkpoint = Checkpoint(directory, record)
        DrafterShape.from_config(dict(record["shape"]))
        if f"step-{checkpoint.step:06d}" != directory.name:
            raise CheckpointError(f"{directory} holds step {checkpoint.step}; it was renamed")
        for name in (WEIGHTS, MOMENTS):
            _check_safetensors(directory / name)
    except (
        OSError,
        ValueError,
        LookupError,
        TypeError,
        ArithmeticError,
        SafetensorError,
        RecursionError,
        ModelError,
    ) as error:
        raise CheckpointError(f"{directory / STATE} cannot be used: {error!r}") from error
    return checkpoint


def checkpoint_directories(run: Path) -> list[Path]:
    """Every checkpoint of a run, newest first, whole or not."""
    found = [path for path in (run / "checkpoints").glob("step-*") if STEP_NAME.fullmatch(path.name)]
    return sorted((path for path in found if path.is_dir() and not path.is_symlink()), key=step_of, reverse=True)


def step_directory(run: Path, step: int) -> Path:
    return run / "checkpoints" / f"step-{step:06d}"


def step_of(directory: Path) -> int:
    """By number, not by name: step-1000000 comes after step-999999."""
    return int(directory.name.removeprefix("step-"))


def examine(run: Path) -> Iterator[tuple[Path, Checkpoint | CheckpointError]]:
    """Every checkpoint, newest first, with what is wrong with it if anything is."""
    for directory in checkpoint_directories(run):
        try:
            yield directory, open_checkpoint(directory)
        except DraftsmithError as error:
            yield directory, CheckpointError(str(error))


def newest_checkpoint(run: Path) -> tuple[Checkpoint | None, dict[Path, str]]:
    """The newest checkpoint that is whole, and what is wrong with each newer one. Changes nothing."""
    problems: dict[Path, str] = {}
    for directory, found in examine(run):
        if isinstance(found, Checkpoint):
            return found, problems
        problems[directory] = str(found)
    return None, problems


def load_checkpoint(run: Path) -> tuple[Drafter, dict[str, Any], Path]:
    """The newest checkpoint of a run that is whole: its drafter in fp32, its record, its directory.

    Raises CheckpointError that says what is wrong with each candidate if there is none.
    """
    checkpoint, problems = newest_checkpoint(run)
    if checkpoint is None:
        detail = "; ".join(problems.values()) if problems else f"there is no {run / 'checkpoints'}/step-*"
        raise CheckpointError(f"{run} has no checkpoint that can be used: {detail}")
    return checkpoint.drafter(), checkpoint.record, checkpoint.directory


def load_whole(drafter: torch.nn.Module, weights: dict[str, torch.Tensor]) -> None:
    """Load whole weights, whether the drafter is whole or spread over ranks. Raises RuntimeError if they do not fit."""
    own = drafter.state_dict()
    drafter.load_state_dict(
        {name: as_part_of(tensor, own[name]) if name in own else tensor for name, tensor in weights.items()}
    )


def whole_drafter(state: TrainState) -> Drafter:
    """A copy of the drafter, on the CPU, where this rank keeps one and the others `take_part` without moments."""
    drafter, theirs = Drafter(state.drafter.shape), state.drafter.state_dict()
    for name, tensor in drafter.state_dict().items():
        tensor.copy_(whole(theirs[name]))
    return drafter


def params_sha256(drafter: torch.nn.Module) -> str:
    """One hash over names, shapes and bytes of all parameters, in order of names."""
    return _sha256(drafter.state_dict())


def moments_sha256(state: TrainState) -> str:
    """The same over what the optimisers remember."""
    return _sha256(_moments(state))


def _sha256(tensors: dict[str, torch.Tensor]) -> str:
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name}{tuple(tensor.shape)}{tensor.dtype}".encode())
        digest.update(whole(tensor).detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    return whole(tensor).detach().to("cpu", copy=True, memory_format=torch.contiguous_format)


def _moments(state: TrainState) -> dict[str, torch.Tensor]:
    """What the optimisers remember, by parameter and name."""
    names = {parameter: name for name, parameter in state.drafter.named_parameters()}
    return {
        f"{names[parameter]}/{kind}": tensor
        for optimizer in state.optimizers
        for group in optimizer.param_groups
        for parameter in group["params"]
        for kind, tensor in optimizer.state.get(parameter, {}).items()
    }


def _restore_moments(state: TrainState, moments: dict[str, torch.Tensor]) -> None:
    own = dict(state.drafter.named_parameters())
    names = {parameter: name for name, parameter in own.items()}
    by_parameter: dict[str, dict[str, torch.Tensor]] = {}
    for key, tensor in moments.items():
        name, _, kind = key.rpartition("/")
        has_parts = name in own and tensor.shape == own[name].shape  # a count of steps has none
        by_parameter.setdefault(name, {})[kind] = as_part_of(tensor, own[name]) if has_parts else tensor
    for optimizer in state.optimizers:
        saved = optimizer.state_dict()
        parameters = [names[parameter] for group in optimizer.param_groups for parameter in group["params"]]
        found = {index: by_parameter.pop(name) for index, name in enumerate(parameters) if name in by_parameter}
        optimizer.load_state_dict({**saved, "state": found})
    if by_parameter:
        raise ValueError(f"moments of {sorted(by_parameter)[0]}, which is no parameter of this drafter")


def _check_safetensors(path: Path) -> None:
    """Opened, not read: the header must be one, whatever the manifest says."""
    with safe_open(path, framework="pt"):
        pass
