"""A file of answers that grows row by row and survives being killed: no row twice, none lost.

Rows are known by what was asked, never by their place or id, so a source whose rows were moved, added or taken out
goes on with every answer that still has its question. At the end the file is written anew in the order of the source.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from draftsmith.data.rows import content_id
from draftsmith.errors import DataError
from draftsmith.files import atomic_file, atomic_write
from draftsmith.records import Conversation


@dataclass(frozen=True)
class Asked:
    """A conversation whose assistant turns are to be written. `key` depends on what is asked and nothing else."""

    key: str
    line: int
    conversation: Conversation

    @property
    def turns(self) -> list[dict[str, Any]]:
        """All messages but the assistant's."""
        return [message for message in self.conversation.messages if message["role"] != "assistant"]


def with_keys(rows: Sequence[tuple[int, Conversation]]) -> list[Asked]:
    """Who asks the same as an earlier row gets a number after the hash, so that draws differ."""
    seen: Counter[str] = Counter()
    asked = []
    for line, conversation in rows:
        turns = tuple(message for message in conversation.messages if message["role"] != "assistant")
        digest = content_id(turns, conversation.tools)
        asked.append(Asked(f"{digest}.{seen[digest]}" if seen[digest] else digest, line, conversation))
        seen[digest] += 1
    return asked


class AnswerFile:
    """The answers that are on their way to `destination`, kept beside it. One process at a time.

    `made_with` names everything that decides what an answer says: a file that was begun otherwise is refused.
    """

    def __init__(self, destination: Path, made_with: dict[str, Any]) -> None:
        self.destination = destination
        self.made_with = made_with
        if not destination.name:
            raise DataError(f"{destination} is a directory; name the file to write")
        self._path = destination.with_name(destination.name + ".partial")
        self._places: dict[str, tuple[int, int]] = {}  # key -> where its line starts and stops

    def __enter__(self) -> AnswerFile:
        """Raises DataError if the destination exists, is being written, or was begun with other settings."""
        with self._writing():
            self.destination.parent.mkdir(parents=True, exist_ok=True)
            self._refuse_finished()
            self._file: IO[bytes] = self._path.open("a+b")
        try:
            _lock(self._file, self.destination)
            self._refuse_finished()  # by whoever had the lock before
            self._read()
        except BaseException:
            self._file.close()
            raise
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._file.close()

    def __contains__(self, key: str) -> bool:
        return key in self._places

    def add(self, key: str, row: dict[str, Any]) -> None:
        """Append one answered row; it survives the process from here on."""
        line = json.dumps({"asked": key, **row}, ensure_ascii=False).encode() + b"\n"
        with self._writing():
            start = self._file.seek(0, os.SEEK_END)
            self._file.write(line)
            self._file.flush()
        self._places[key] = (start, start + len(line))

    def finish(self, asked: Sequence[Asked], left_out: list[dict[str, Any]]) -> int:
        """Write the destination in the order of `asked`, and what it was made with beside it; returns cut rows."""
        num_rows = num_truncated = 0
        with self._writing():
            with atomic_file(self.destination) as file:
                for wanted in asked:
                    if wanted.key not in self:
                        continue
                    row = {"id": wanted.conversation.id, **self._row(wanted.key)}
                    num_rows, num_truncated = num_rows + 1, num_truncated + row["truncated"]
                    file.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")
                about = {"made_with": self.made_with, "num_rows": num_rows, "num_truncated": num_truncated}
                beside = self.destination.with_name(self.destination.name + ".meta.json")
                atomic_write(beside, json.dumps({**about, "left_out": left_out}, indent=2) + "\n")
            self._path.unlink()
        return num_truncated

    def _row(self, key: str) -> dict[str, Any]:
        start, stop = self._places[key]
        self._file.seek(start)
        return dict(json.loads(self._file.read(stop - start)))

    def _read(self) -> None:
        """Find the rows that an interrupted run left. A line without its end is cut off, its row is made again."""
        self._file.seek(0)
        head, place, number = self._file.readline(), 0, 1
        if head.endswith(b"\n"):
            found = self._parsed(head, 1)
            if found != {"made_with": self.made_with}:
                raise DataError(
                    f"{self._path} was begun with {found.get('made_with')}, now it is {self.made_with}; give the same "
                    "settings to go on, or delete it to begin anew"
                )
            place = len(head)
        for number, line in enumerate(self._file, start=2):  # bytes: answers may hold line ends of Unicode
            if not line.endswith(b"\n"):
                break
            self._places[str(self._parsed(line, number).get("asked"))] = (place, place + len(line))
            place += len(line)
        with self._writing():
            self._file.truncate(place)
            if place == 0:
                self._file.write(json.dumps({"made_with": self.made_with}).encode() + b"\n")
                self._file.flush()

    def _parsed(self, line: bytes, number: int) -> dict[str, Any]:
        try:
            return dict(json.loads(line))
        except (ValueError, TypeError) as error:
            raise DataError(f"{self._path}, line {number}, cannot be read: {error}; delete the line") from None

    def _refuse_finished(self) -> None:
        if self.destination.exists():
            raise DataError(
                f"{self.destination} already exists; choose another file, or remove it to have it written again"
            )

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            why = error.strerror or error
            raise DataError(f"{self.destination} cannot be written: {why}; what was answered before is kept") from error


def _lock(file: IO[bytes], destination: Path) -> None:
    """Two processes would write the same answers twice."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise DataError(f"another process is writing {destination}; wait for it, or choose another file") from None
