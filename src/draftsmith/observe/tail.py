"""Reads a file of JSON lines while another process writes it: every whole line once, and never a half one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

Row = dict[str, Any]


class Tail:
    """The lines of one file from its beginning, as they come. The file may not exist yet, and is only ever read.

    A line without its end is left for the next `read`. A line that is not a JSON object is counted in
    `num_unreadable` and left out: a process that was killed leaves one, and its successor appends to it. A file that
    has become shorter was cut back, as resuming does; `num_restarts` counts that, and reading starts over.
    """

    def __init__(self, path: Path) -> None:
        self.num_unreadable = 0
        self.num_restarts = 0
        self._path = path
        self._offset = 0

    def read(self) -> list[Row]:
        """The rows that were completed since the last call. Raises OSError if a file that exists cannot be read."""
        try:
            with self._path.open("rb") as file:
                file.seek(0, 2)
                if file.tell() < self._offset:
                    self._offset, self.num_unreadable = 0, 0
                    self.num_restarts += 1
                file.seek(self._offset)
                whole, end, _half = file.read().rpartition(b"\n")
        except FileNotFoundError:
            return []
        self._offset += len(whole) + len(end)
        rows = [row_of(line) for line in whole.split(b"\n") if line.strip()]
        self.num_unreadable += rows.count(None)
        return [row for row in rows if row is not None]


def row_of(line: bytes) -> Row | None:
    """The JSON object in a line, None if there is none."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):  # UnicodeDecodeError is a ValueError
        return None
    return found if isinstance(found, dict) else None
