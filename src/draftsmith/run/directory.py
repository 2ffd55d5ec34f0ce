"""The directory of a run: who may use it, what is in it already, and what it holds besides metrics and checkpoints."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from draftsmith.config import RunConfig, load_config
from draftsmith.errors import CheckpointError, ConfigError
from draftsmith.files import LEFTOVER, atomic_write, sweep
from draftsmith.observe import describe_environment
from draftsmith.redaction import redacted
from draftsmith.run.contract import differences, settings_of
from draftsmith.run.lock import LOCK, check_free, locked

RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True)
class Claim:
    """A run directory that is ours. swept: what a killed process had left half-written, and is gone now."""

    run: Path
    is_new: bool
    swept: tuple[str, ...] = ()


@contextmanager
def claimed(config: RunConfig, name: str, *, resume: bool = False) -> Iterator[Claim]:
    """Hold the directory of a run, a new one or one that is unfinished; `resume` insists on the latter.

    Raises CheckpointError, and changes nothing, if another process has it, if it holds a finished run, a run with other
    settings, or something else.
    """
    run = directory_of(config, name)
    _look_at(run, config, resume=resume)
    with ExitStack() as stack:
        try:
            run.mkdir(parents=True, exist_ok=True)
            stack.enter_context(locked(run))
            is_new = _look_at(run, config, resume=resume)  # again: now nobody else can change it
            claim = Claim(run, is_new, tuple(sweep(run) + sweep(run / "checkpoints")))
        except OSError as error:
            raise _unwritable(run, error) from error
        yield claim


def with_directory(config: RunConfig, name: str, *, resume: bool = False) -> RunConfig:
    """The same, with the directory of its run, where nothing is changed.

    For a starter of processes, which would find out only when they run. Raises what `claimed` would, as far as that is
    known without writing.
    """
    run = directory_of(config, name)
    _look_at(run, as_settled_before(config), resume=resume)
    try:
        check_free(run)
    except OSError as error:
        raise _unwritable(run, error) from error
    return config.model_copy(update={"run": config.run.model_copy(update={"dir": run})})


@contextmanager
def discarded_on_failure(claim: Claim) -> Iterator[None]:
    """Until training starts a new run holds nothing worth keeping, and would be in the way of the next try."""
    try:
        yield
    except BaseException:
        if claim.is_new:
            for name in ("config.toml", "environment.json", LOCK):
                (claim.run / name).unlink(missing_ok=True)
            shutil.rmtree(claim.run / "store", ignore_errors=True)
            with suppress(OSError):  # not empty: somebody else's files have come meanwhile
                claim.run.rmdir()
        raise


def write_settings(run: Path, config: RunConfig) -> list[str]:
    """Write config.toml and environment.json; returns how the environment differs from that of an earlier start."""
    path, now = run / "environment.json", {**describe_environment(), "target": config.target.model}
    before = read_json(path) if path.exists() else now
    changed = differences(_what_computes(before), _what_computes(now))
    try:
        atomic_write(run / "config.toml", as_toml(config))
        write_json(path, now)
    except OSError as error:
        raise _unwritable(run, error) from error
    return changed


def as_settled_before(config: RunConfig) -> RunConfig:
    """Precisions that are auto as an earlier start in run.dir settled them: measured again, they might differ."""
    path = None if config.run.dir is None else config.run.dir / "config.toml"
    if path is None or not path.exists():
        return config
    before = load_config(path)
    target, train = config.target, config.train
    if target.dtype == "auto":
        target = target.model_copy(update={"dtype": before.target.dtype})
    if train.dtype == "auto":
        train = train.model_copy(update={"dtype": before.train.dtype})
    return config.model_copy(update={"target": target, "train": train})


def resume_command(run: Path) -> str:
    return f"draftsmith train {run} --resume"


def is_finished(run: Path) -> bool:
    """Has everything been done that was asked for: trained, exported, measured?"""
    path = run / "summary.json"
    return path.exists() and bool(read_json(path).get("finished"))


def as_toml(config: RunConfig) -> str:
    """The settings as a file. Raises ConfigError if one of them holds a credential: files of a run are passed on."""
    text = tomli_w.dumps(config.model_dump(mode="json", exclude_none=True))
    for line, shown in zip(text.splitlines(), redacted(text).splitlines(), strict=True):
        if line != shown:
            raise ConfigError(f"a setting holds a credential: {shown}; give it in the environment, as HF_TOKEN is")
    return text


def read_json(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError as error:
        raise CheckpointError(f"{path} is not there; is {path.parent} a finished run?") from error
    except (OSError, ValueError, TypeError) as error:
        raise CheckpointError(f"{path} cannot be read ({error}); put back a copy, or train again elsewhere") from error


def write_json(path: Path, value: dict[str, Any]) -> None:
    atomic_write(path, json.dumps(value, indent=2) + "\n")


def _what_computes(environment: dict[str, Any]) -> dict[str, Any]:
    """Of an environment, what may change the last bits of a result."""
    return {
        **{name: environment.get(name) for name in ("draftsmith", "python", "processor", "cores")},
        **environment.get("packages", {}),
    }


def directory_of(config: RunConfig, name: str) -> Path:
    """Where a run lives: run.dir, or a new place under runs/ of this name and time."""
    if config.run.dir is not None:
        return config.run.dir
    if not RUN_NAME.fullmatch(name):
        raise ConfigError(
            f"a run cannot be named after {name!r}: letters, digits, dots, dashes and underscores only; "
            "say where it lives with run.dir=..."
        )
    return Path("runs") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"


def _look_at(run: Path, config: RunConfig, *, resume: bool) -> bool:
    """Is there no run yet? Raises CheckpointError if what is there cannot be gone on with."""
    if run.exists() and not run.is_dir():
        raise CheckpointError(f"{run} is not a directory; choose another one with run.dir=...")
    if (run / "checkpoints").is_symlink():
        raise CheckpointError(f"{run / 'checkpoints'} leads out of the run directory; nothing is written there")
    if (run / "config.toml").exists():
        _refuse_unless_unfinished(run, config)
        return False
    there = [path.name for path in run.iterdir()] if run.exists() else []
    foreign = [name for name in sorted(there) if name != LOCK and not LEFTOVER.fullmatch(name)]
    if foreign:
        raise CheckpointError(
            f"{run} is not an empty directory: there is {foreign[0]}; choose another directory with run.dir=..."
        )
    if resume:
        raise CheckpointError(f"{run} holds no run that could be resumed; leave out --resume to begin one")
    return True


def _refuse_unless_unfinished(run: Path, config: RunConfig) -> None:
    if is_finished(run):
        raise CheckpointError(
            f"{run} already holds a run, which is finished; choose another directory with run.dir=..., and --from "
            f"{run} to start there from its weights"
        )
    changed = differences(settings_of(load_config(run / "config.toml")), settings_of(config))
    if changed:
        raise CheckpointError(
            f"{run} already holds a run with other settings: {'; '.join(changed)}; set them back to resume it, or "
            f"choose another directory with run.dir=..., and --from {run} to start there from its weights"
        )


def _unwritable(run: Path, error: OSError) -> CheckpointError:
    return CheckpointError(f"run directory {run} cannot be written: {error.strerror}")
