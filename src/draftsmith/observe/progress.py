"""One line of progress: rewritten in place in a terminal, printed now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType

from rich.console import Console
from rich.markup import escape
from rich.status import Status

from draftsmith.redaction import redacted

_SILENCED = False


@contextmanager
def silenced() -> Iterator[None]:
    """In this process nobody is shown anything: of several ranks one speaks."""
    global _SILENCED
    _SILENCED = True
    try:
        yield
    finally:
        _SILENCED = False


class Progress:
    """Shows what a phase is doing. `seconds_between` bounds plain lines where there is no terminal."""

    def __init__(self, title: str, *, console: Console | None = None, seconds_between: float = 10.0) -> None:
        self._title = title
        self._console = console or Console(stderr=True, highlight=False, quiet=_SILENCED)
        self._seconds_between = seconds_between
        self._last_line = float("-inf")
        self._status: Status | None = None

    def __enter__(self) -> Progress:
        if self._console.is_terminal:
            self._status = self._console.status(escape(f"{self._title} ..."), refresh_per_second=2)
            self._status.start()
        else:
            self._console.print(f"{self._title} ...", markup=False)
            self._last_line = time.monotonic()
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if self._status is not None:
            self._status.stop()

    def note(self, text: str) -> None:
        """Print a line that stays; credentials are nobody's business."""
        self._console.print(f"{self._title}: {redacted(text)}", markup=False, soft_wrap=True)

    def show(self, text: str | Callable[[], str]) -> None:
        """Replace the line; outside a terminal, print at most one line every `seconds_between`."""
        if self._status is not None:
            self._status.update(escape(f"{self._title}: {text if isinstance(text, str) else text()}"))
        elif time.monotonic() - self._last_line >= self._seconds_between:
            self._last_line = time.monotonic()
            self.note(text if isinstance(text, str) else text())
