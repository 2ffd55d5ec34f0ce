"""Ctrl-C and SIGTERM ask a loop to stop after its step; a second signal stops at once, but never while saving."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType


class StopRequest:
    """While active, the first SIGINT or SIGTERM is remembered in `received`; a second one stops at once.

    Inside `shielded()` no signal stops anything: there, what has been trained is being saved.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self.is_urgent = False  # a second one came
        self._is_shielded = False
        self._before: dict[int, object] = {}

    def __enter__(self) -> StopRequest:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    @contextmanager
    def shielded(self) -> Iterator[None]:
        self._is_shielded = True
        try:
            yield
        finally:
            self._is_shielded = False

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        first = self.received is None
        self.received = self.received or number
        self.is_urgent = not first
        if not first and not self._is_shielded:
            raise KeyboardInterrupt
