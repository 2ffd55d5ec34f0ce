"""Ctrl-C and SIGTERM ask a loop to stop after its step; a second signal stops at once."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType


class StopRequest:
    """While active, the first SIGINT or SIGTERM is remembered in `received`; the second acts as it normally would."""

    def __init__(self) -> None:
        self.received: int | None = None
        self._before: dict[int, object] = {}

    def __enter__(self) -> StopRequest:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._restore()

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self.received = number
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        self._before = {}
