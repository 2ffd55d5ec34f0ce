"""Every format by name, and reading a directory in whichever it is."""

from __future__ import annotations

import json
from pathlib import Path

from draftsmith.drafter import Drafter
from draftsmith.errors import ExportError
from draftsmith.export.directory import read_layout
from draftsmith.export.layouts import LAYOUTS, layout_of

FORMATS = (*LAYOUTS, "gguf")


def format_of(directory: Path) -> str:
    """Which format an exported directory is in. Raises ExportError if it is none."""
    if any(directory.glob("*.gguf")):
        return "gguf"
    try:
        config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ExportError(f"{directory} cannot be read as an exported drafter: {error}") from error
    return layout_of(config).name


def read_drafter(directory: Path) -> Drafter:
    """An exported drafter in any format: bf16, from GGUF fp32.

    Raises ExportError for missing or torn files, other names, shapes or types, ModelError for what is not supported.
    """
    if format_of(directory) != "gguf":
        return read_layout(directory)
    from draftsmith.export.llama_cpp import gguf_file, read_gguf  # the gguf package is an extra

    path = gguf_file(directory)
    assert path is not None
    return read_gguf(path)
