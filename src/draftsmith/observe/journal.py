"""Append-only JSON lines: each is written whole and handed to the system at once, so a kill loses none before it."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from types import TracebackType
from typing import Any


class Journal:
    """metrics.jsonl and events.jsonl of a run directory."""

    def __init__(self, run: Path) -> None:
        self._metrics = (run / "metrics.jsonl").open("a", encoding="utf-8")
        self._events = (run / "events.jsonl").open("a", encoding="utf-8")

    def metrics(self, **values: Any) -> None:
        self._write(self._metrics, values)

    def event(self, kind: str, **values: Any) -> None:
        self._write(self._events, {"event": kind, **values})

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._metrics.close()
        self._events.close()

    @staticmethod
    def _write(file: Any, values: dict[str, Any]) -> None:
        line = {"time": round(time.time(), 3), **{name: _finite(value) for name, value in values.items()}}
        file.write(json.dumps(line, allow_nan=False) + "\n")
        file.flush()


def _finite(value: Any) -> Any:
    """JSON has no NaN; a reader should still see what happened."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value
