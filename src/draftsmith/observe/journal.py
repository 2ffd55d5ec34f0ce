"""What a run says as JSON lines: metrics of every step, events, and which samples each step trained on."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from draftsmith.observe.lines import LineLog
from draftsmith.redaction import redacted


class Listener(Protocol):
    """Is told every row of a journal, after it was written. Must not raise, wait, or change the row."""

    def metrics(self, row: dict[str, Any]) -> None: ...

    def event(self, row: dict[str, Any]) -> None: ...


class Journal:
    """metrics.jsonl, events.jsonl and samples.jsonl of a run directory.

    `keep_bytes`: the lengths that metrics and samples had when the checkpoint was taken from which training goes on.
    Without a run nothing is kept: of several ranks one writes.
    """

    def __init__(self, run: Path | None, *, keep_bytes: Mapping[str, int] | None = None) -> None:
        kept = keep_bytes or {}
        self._metrics = LineLog(_in(run, "metrics.jsonl"), keep_bytes=kept.get("metrics.jsonl"))
        self._samples = LineLog(_in(run, "samples.jsonl"), keep_bytes=kept.get("samples.jsonl"))
        self._events = LineLog(_in(run, "events.jsonl"))
        self._listeners: list[Listener] = []

    def metrics(self, **values: Any) -> None:
        row = _stamped(values)
        self._metrics.append(row)
        for listener in self._listeners:
            listener.metrics(row)

    def event(self, kind: str, **values: Any) -> None:
        row = _stamped({"event": kind, **values})
        self._events.append(row)
        for listener in self._listeners:
            listener.event(row)

    def trained(self, *, step: int, epoch: int, seq: int, samples: tuple[int, ...]) -> None:
        """Note that a batch becomes part of a step. Nothing but the plan decides these lines: no time, no figures."""
        self._samples.append({"step": step, "epoch": epoch, "seq": seq, "samples": samples})

    @property
    def num_bytes(self) -> dict[str, int]:
        """Lengths for `keep_bytes`."""
        return {log.path.name: log.num_bytes for log in (self._metrics, self._samples)}

    def sync(self) -> None:
        """Wait until metrics and samples are on disk. Raises OSError if they cannot be."""
        self._metrics.sync()
        self._samples.sync()

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
        with ExitStack() as stack:  # each is closed, whatever closing another one raises
            for log in (self._metrics, self._samples, self._events):
                stack.callback(log.close)


def _in(run: Path | None, name: str) -> Path:
    return Path(os.devnull) if run is None else run / name


def _stamped(values: dict[str, Any]) -> dict[str, Any]:
    return {"time": round(time.time(), 3), **{name: _writable(value) for name, value in values.items()}}


def _writable(value: Any) -> Any:
    """JSON has no NaN, but a reader should still see what happened; credentials are nobody's business."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, str):
        return redacted(value)
    if isinstance(value, (list, tuple)):
        return [_writable(item) for item in value]
    if isinstance(value, dict):
        return {name: _writable(item) for name, item in value.items()}
    return value
