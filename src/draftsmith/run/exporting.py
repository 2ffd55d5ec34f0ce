"""export(): a checkpoint in the formats that engines load."""

from __future__ import annotations

from pathlib import Path

from draftsmith.export import export_drafter, model_card
from draftsmith.run.directory import read_json
from draftsmith.training import (
    load_checkpoint,
)


def export(run: Path, destination: Path) -> Path:
    """Export the newest checkpoint of a run to `destination`, which must not exist."""
    drafter, _, _ = load_checkpoint(run)
    return export_drafter(drafter, destination, card=model_card(drafter.shape, read_json(run / "summary.json")))
