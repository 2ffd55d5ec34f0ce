"""Append-only JSON lines: each is written whole and handed to the system at once, so a kill loses none before it."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol


class Listener(Protocol):
    """Is told every row of a journal, after it was written. Must not raise, wait, or change the row."""

    def metrics(self, row: dict[str, Any]) -> None: ...

    def event(self, row: dict[str, Any]) -> None: ...


class Journal:
    """metrics.jsonl and events.jsonl of a run directory."""

    def __init__(self, run: Path) -> None:
        self._metrics = (run / "metrics.jsonl").open("a", encoding="utf-8")
        self._events = (run / "events.jsonl").open("a", encoding="utf-8")
        self._listeners: list[Listener] = []

    def metrics(self, **values: Any) -> None:
        row = self._write(self._metrics, values)
        for listener in self._listeners:
            listener.metrics(row)

    def event(self, kind: str, **values: Any) -> None:
        row = self._write(self._events, {"event": kind, **values})
        for listener in self._listeners:
            listener.event(row)

    @contextmanager
    def heard_by(self, listener: Listener) -> Iterator[None]:
        """Tell `listener` every row inside the block."""
        self._listeners.append(listener)
        try:
            yield
        finally:
            self._listeners.remove(listener)

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._metrics.close()
        self._events.close()

    @staticmethod
    def _write(file: Any, values: dict[str, Any]) -> dict[str, Any]:
        row = {"time": round(time.time(), 3), **{name: _finite(value) for name, value in values.items()}}
        file.write(json.dumps(row, allow_nan=False) + "\n")
        file.flush()
        return row


def _finite(value: Any) -> Any:
    """JSON has no NaN; a reader should still see what happened."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value
