"""Runs of several processes: gloo, fp32, one thread each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from ranks import Train

from helpers import CONFIGS, Finished, draftsmith, running


@pytest.fixture(autouse=True)
def P11_nothing_is_left_running() -> Iterator[None]:
    before = running()
    yield
    assert not running() - before


@pytest.fixture(scope="session")
def settings(settings_of_run: list[str]) -> list[str]:
    return [*settings_of_run, "train.grad_accum=2", "eval.num_prompts=0", "eval.num_timed=0"]


@pytest.fixture
def train(settings: list[str], tmp_path: Path) -> Train:
    def run(*overrides: object, name: str = "run") -> tuple[Finished, Path]:
        done = draftsmith("train", CONFIGS / "tiny-cpu.toml", *settings, *overrides, f"run.dir={tmp_path / name}")
        return done, tmp_path / name

    return run


@pytest.fixture(scope="session")
def alone(settings: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 8 steps in one process. Tests must not change it."""
    run = tmp_path_factory.mktemp("alone") / "run"
    done = draftsmith("train", CONFIGS / "tiny-cpu.toml", *settings, f"run.dir={run}")
    assert done.code == 0, done.err
    return run
