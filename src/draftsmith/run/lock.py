"""One process per run directory. The system holds the lock, so a killed process never leaves it behind."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from draftsmith.errors import CheckpointError

LOCK = "LOCK"
KERNEL_LOCKS = Path("/proc/locks")


@contextmanager
def locked(run: Path) -> Iterator[None]:
    """Hold `run` for this process. Raises CheckpointError that names the holder if another one has it."""
    file = _take(run, os.O_CREAT)
    try:
        os.ftruncate(file, 0)
        os.write(file, json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode() + b"\n")
        yield
    finally:
        os.close(file)


def check_free(run: Path) -> None:
    """Raises CheckpointError that names the holder if another process has `run`. Writes nothing; others may look."""
    with suppress(FileNotFoundError):
        os.close(_take(run, 0, fcntl.LOCK_SH))


def _take(run: Path, flags: int, kind: int = fcntl.LOCK_EX) -> int:
    path = run / LOCK
    while True:
        file = os.open(path, os.O_RDWR | flags, 0o644)
        try:
            fcntl.flock(file, kind | fcntl.LOCK_NB)
            if path.exists() and os.path.samestat(os.fstat(file), path.stat()):
                return file
            os.close(file)  # its last holder removed the directory meanwhile: what we locked is nobody's
        except OSError as error:
            holder = os.pread(file, 200, 0).decode(errors="replace").strip()
            os.close(file)
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise CheckpointError(
                    f"{path} cannot be locked: {error.strerror}; use a file system that can"
                ) from None
            raise CheckpointError(
                f"{run} is in use by another process, {holder or 'which does not say who it is'}; wait for it, stop "
                "it, or choose another directory with run.dir=..."
            ) from None


def is_held(run: Path) -> bool | None:
    """Whether a process of this machine holds `run`; None where that cannot be known. Locks nothing, writes nothing."""
    try:
        status = (run / LOCK).stat()
        holder = json.loads((run / LOCK).read_text(encoding="utf-8"))
        if holder["host"] != socket.gethostname():
            return None
        taken = KERNEL_LOCKS.read_text(encoding="utf-8")
    except (OSError, ValueError, KeyError, TypeError):
        return None
    place = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    return any("FLOCK" in words and place in words for words in map(str.split, taken.splitlines()))
