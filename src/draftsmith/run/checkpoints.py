"""checkpoints(): what a run has saved, whether it is whole, and which one training would go on from."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from draftsmith.errors import CheckpointError
from draftsmith.run.directory import read_json
from draftsmith.training import Checkpoint, examine


@dataclass(frozen=True)
class Listed:
    """One checkpoint. use: what it is for; problem: what is wrong with it, or None if every file is as written."""

    step: int
    path: str
    bytes: int
    acceptance: float | None
    use: str
    problem: str | None


def list_checkpoints(run: Path) -> list[Listed]:
    """Every checkpoint of a run, newest first, each verified. Raises CheckpointError if there is no such run."""
    if not (run / "config.toml").exists():
        raise CheckpointError(f"{run} is no run directory: there is no config.toml in it")
    found = list(examine(run))
    whole = [checkpoint for _, checkpoint in found if isinstance(checkpoint, Checkpoint)]
    measured = _measured(run, whole)
    best = max(sorted(measured), key=lambda step: measured[step], default=None)
    listed = []
    for directory, checkpoint in found:
        step = int(directory.name.removeprefix("step-"))
        uses = ["resume"] if whole and checkpoint is whole[0] else []
        uses += ["best"] if step == best else []
        listed.append(
            Listed(
                step=step,
                path=str(directory),
                bytes=sum(path.stat().st_size for path in directory.iterdir()),
                acceptance=measured.get(step),
                use=", ".join(uses),
                problem=None if isinstance(checkpoint, Checkpoint) else str(checkpoint),
            )
        )
    return listed + [_set_aside(path) for path in sorted((run / "checkpoints").glob("step-[0-9]*.corrupt*"))]


def print_checkpoints(listed: list[Listed], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps([asdict(each) for each in listed], indent=2))
        return
    table = Table()
    for name in ("step", "MB", "accepted", "use", "state"):
        table.add_column(name, justify="right" if name in ("step", "MB", "accepted") else "left")
    for each in listed:
        accepted = "" if each.acceptance is None else f"{each.acceptance:.3f}"
        table.add_row(f"{each.step:,}", f"{each.bytes / 1e6:.1f}", accepted, each.use, each.problem or "whole")
    Console(highlight=False).print(table if listed else "nothing has been saved yet", markup=False)


def _measured(run: Path, whole: list[Checkpoint]) -> dict[int, float]:
    """Acceptance by step: of the end if there is one, else of the newest checkpoint."""
    found = whole[0].record["acceptance"] if whole else {}
    with suppress(CheckpointError):  # not there yet, or damaged: checkpoints are listed all the same
        found = read_json(run / "summary.json").get("held_out_acceptance")
    return {int(step): float(length) for step, length in found.items()} if isinstance(found, dict) else {}


def _set_aside(directory: Path) -> Listed:
    step = int(directory.name.removeprefix("step-").partition(".")[0])
    size = sum(path.stat().st_size for path in directory.iterdir())
    return Listed(step, str(directory), size, None, "", "damaged, set aside")
