"""What a run leaves on disk besides its metrics: configuration, environment, summary."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import tomli_w

from draftsmith.config import RunConfig
from draftsmith.errors import CheckpointError
from draftsmith.files import atomic_write
from draftsmith.observe import describe_environment


def create_run(config: RunConfig, name: str) -> Path:
    run = config.run.dir or Path("runs") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    try:
        if run.exists() and (not run.is_dir() or any(run.iterdir())):
            what = "already holds a run" if (run / "config.toml").exists() else "is not an empty directory"
            raise CheckpointError(f"{run} {what}; choose another directory with run.dir=...")
        run.mkdir(parents=True, exist_ok=True)
        atomic_write(run / "config.toml", as_toml(config))
        write_json(run / "environment.json", {**describe_environment(), "target": config.target.model})
    except OSError as error:
        raise CheckpointError(f"run directory {run} cannot be written: {error.strerror}") from error
    return run


@contextmanager
def discarded_on_failure(run: Path) -> Iterator[None]:
    """Until training starts a run directory holds nothing worth keeping, and would be in the way of the next try."""
    try:
        yield
    except BaseException:
        for name in ("config.toml", "environment.json"):
            (run / name).unlink(missing_ok=True)
        shutil.rmtree(run / "store", ignore_errors=True)
        with suppress(OSError):  # not empty: somebody else's files have come meanwhile
            run.rmdir()
        raise


def as_toml(config: RunConfig) -> str:
    return tomli_w.dumps(config.model_dump(mode="json", exclude_none=True))


def read_json(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise CheckpointError(f"{path} cannot be read ({error}); is {path.parent} a finished run?") from error


def write_json(path: Path, value: dict[str, Any]) -> None:
    atomic_write(path, json.dumps(value, indent=2) + "\n")
