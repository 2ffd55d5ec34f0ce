"""A file of JSON lines that only grows: no half line, whatever killed the process before; a full disk is waited out."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

# What a disk says when it is full, or not writable for a while. Lines wait in memory then.
UNWRITABLE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO}
MAX_WAITING_BYTES = 64 * 2**20
LOOK_BACK = 2**16


class LineLog:
    """Appends whole lines, each handed to the system at once, so that a kill loses none before it.

    Opening it cuts off a half line at the end. `keep_bytes` cuts it to that length first: what a rolled-back step wrote
    is written again. Lines that cannot be written wait in memory, up to 64 MiB; then, and in `sync`, OSError is raised.
    """

    def __init__(self, path: Path, *, keep_bytes: int | None = None) -> None:
        self.path = path
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        self._waiting = b""
        whole = _whole_bytes(self._file, keep_bytes)
        if whole < os.fstat(self._file).st_size:
            os.ftruncate(self._file, whole)
        self._written = whole

    @property
    def num_bytes(self) -> int:
        """Length of everything appended so far, what waits in memory included."""
        return self._written + len(self._waiting)

    def append(self, record: dict[str, Any]) -> None:
        self._waiting += json.dumps(record, allow_nan=False).encode() + b"\n"
        try:
            self._flush()
        except OSError as error:
            if error.errno not in UNWRITABLE or len(self._waiting) > MAX_WAITING_BYTES:
                raise

    def sync(self) -> None:
        """Wait until every line is on disk. Raises OSError if it cannot be."""
        self._flush()
        os.fsync(self._file)

    def close(self) -> None:
        """Raises OSError if lines are still waiting and cannot be written."""
        try:
            self._flush()
        finally:
            os.close(self._file)

    def _flush(self) -> None:
        while self._waiting:
            count = os.write(self._file, self._waiting)
            self._written += count
            self._waiting = self._waiting[count:]


def _whole_bytes(file: int, keep_bytes: int | None) -> int:
    """Length up to the last line end, within the first `keep_bytes`."""
    end = os.fstat(file).st_size
    if keep_bytes is not None:
        end = min(end, keep_bytes)
    while end > 0:
        start = max(0, end - LOOK_BACK)
        found = os.pread(file, end - start, start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0
