"""Runs in this process, for tests of what happens to them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from helpers import CONFIGS, Finished, draftsmith


@pytest.fixture
def train(settings_of_run: list[str], tmp_path: Path) -> Callable[..., tuple[Finished, Path]]:
    """Train in one directory with these further arguments, without measuring at the end."""

    def run(*arguments: object, name: str = "run") -> tuple[Finished, Path]:
        settings = [*settings_of_run, "eval.num_prompts=0", "eval.num_timed=0", f"run.dir={tmp_path / name}"]
        return draftsmith("train", CONFIGS / "tiny-cpu.toml", *settings, *arguments), tmp_path / name

    return run
