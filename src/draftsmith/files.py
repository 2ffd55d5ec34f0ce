"""Directories that appear whole or not at all, and the manifest that proves what is in them.

Written aside, every file and the directory fsynced, then renamed; a reader never sees half of anything.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

MANIFEST = "MANIFEST.json"
LEFTOVER = re.compile(r"\..+\.(tmp|was|old|partial)-[a-z0-9_]{8}")  # what mkdtemp and mkstemp make of our prefixes


@contextmanager
def atomic_directory(destination: Path, *, replace: bool = False) -> Iterator[Path]:
    """Yield an empty directory that becomes `destination` if the block succeeds, and vanishes if it does not.

    Raises FileExistsError if `destination` exists and `replace` is false. With `replace` the old directory stays
    readable until the new one is complete.
    """
    if destination.exists() and not replace:
        raise FileExistsError(f"{destination} already exists")
    destination.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=f".{destination.name}.tmp-", dir=destination.parent))
    try:
        aside.chmod(0o755)  # mkdtemp makes it private; what we publish is not
        yield aside
        for path in aside.rglob("*"):
            if path.is_file():
                path.chmod(0o644)  # some writers make their files private
            fsync(path)
        fsync(aside)
        _move_into_place(aside, destination)
        fsync(destination.parent)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise


def atomic_write(path: Path, text: str) -> None:
    """Replace one small file as a whole."""
    with atomic_file(path) as file:
        file.write(text.encode("utf-8"))


@contextmanager
def atomic_file(path: Path) -> Iterator[IO[bytes]]:
    """A file to write that replaces `path` as a whole if the block succeeds, and vanishes if it does not."""
    descriptor, aside = _aside(path)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(aside, 0o644)
        os.replace(aside, path)
        fsync(path.parent)
    except BaseException:
        Path(aside).unlink(missing_ok=True)
        raise


def _aside(path: Path) -> tuple[int, str]:
    """An open file beside `path`. An error names `path`, which people know, not the file beside it."""
    try:
        return tempfile.mkstemp(prefix=f".{path.name}.tmp-", dir=path.parent)
    except OSError as error:
        error.filename = str(path)
        raise


def sweep(directory: Path) -> list[str]:
    """Remove what a killed process left half-written in `directory`, and name it. Only its owner may do so.

    A directory that was to be replaced goes back to its name if the new one never came.
    """
    found = (
        [path for path in sorted(directory.iterdir()) if LEFTOVER.fullmatch(path.name)] if directory.is_dir() else []
    )
    for path in found:
        name, is_replaced, _ = path.name[1:].rpartition(".was-")
        if is_replaced and (path / "old").exists() and not (directory / name).exists():
            os.rename(path / "old", directory / name)
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    return [path.name for path in found]


def remove_directory(directory: Path) -> None:
    """Remove a directory so that a kill on the way leaves no half of it under its name."""
    retired = Path(tempfile.mkdtemp(prefix=f".{directory.name}.old-", dir=directory.parent))
    os.rename(directory, retired / "old")
    shutil.rmtree(retired)


def sha256_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def short_hash(value: Any) -> str:
    """16 hexadecimal digits that name a JSON value, for directories of derived files."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def write_manifest(directory: Path, **extra: Any) -> None:
    """Record size and SHA-256 of every file of `directory` in MANIFEST.json, beside `extra` facts."""
    files = {
        str(path.relative_to(directory)): {"bytes": path.stat().st_size, "sha256": sha256_file(path)}
        for path in sorted(directory.rglob("*"))
        if path.is_file() and path.name != MANIFEST
    }
    (directory / MANIFEST).write_text(json.dumps({**extra, "files": files}, indent=2) + "\n", encoding="utf-8")


def manifest_problem(directory: Path) -> str | None:
    """What is wrong with a directory that has a manifest, in words, or None if every file is as it was written."""
    try:
        files = json.loads((directory / MANIFEST).read_text(encoding="utf-8"))["files"]
        for name, recorded in files.items():
            path = directory / name
            if not path.is_file():
                return f"{path} is missing"
            if path.stat().st_size != recorded["bytes"]:
                return f"{path} has {path.stat().st_size} bytes, not {recorded['bytes']}"
            if sha256_file(path) != recorded["sha256"]:
                return f"{path} has other content than was written"
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"{directory / MANIFEST} cannot be read: {error}"
    return None


def _move_into_place(aside: Path, destination: Path) -> None:
    if not destination.exists():
        os.rename(aside, destination)
        return
    retired = Path(tempfile.mkdtemp(prefix=f".{destination.name}.was-", dir=destination.parent))
    os.rename(destination, retired / "old")
    try:
        os.rename(aside, destination)
    except BaseException:
        os.rename(retired / "old", destination)
        raise
    finally:
        shutil.rmtree(retired, ignore_errors=True)


def fsync(path: Path) -> None:
    """Wait until a file or a directory's entries are on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class Held(Exception):  # noqa: N818 - the caller says what it means
    """Another process holds a lock."""

    def __init__(self, pid: str) -> None:
        super().__init__(f"held by process {pid}")
        self.pid = pid


@contextmanager
def locked(path: Path, *, wait: bool = False) -> Iterator[None]:
    """Be the only process inside; the file at `path` names it, and goes with it. Raises Held, at once, or waits."""
    while True:
        with path.open("a+", encoding="utf-8") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError:
                file.seek(0)
                raise Held(file.read().strip() or "unknown") from None
            if not _is_at(path, file.fileno()):
                continue  # its holder has just taken it away
            file.truncate(0)
            file.write(str(os.getpid()))
            file.flush()
            try:
                yield
                return
            finally:
                path.unlink(missing_ok=True)


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False
