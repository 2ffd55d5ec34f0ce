"""One job at a time beside the caller: started when there is time for it, collected later, never forgotten."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any

ABANDON_S = 5.0  # after a second Ctrl-C nobody waits longer than this


@dataclass(frozen=True)
class Outcome:
    """What became of a job: its value, or the error that ended it."""

    value: Any = None
    error: BaseException | None = None


class Background:
    """Runs at most one job at a time, in a thread of its own. Leaving the `with` waits for the job that is under way.

    A job's error is an outcome, never lost: whoever submitted it collects it.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._thread: threading.Thread | None = None
        self._outcome = Outcome()

    def submit(self, job: Callable[[], Any]) -> None:
        if self._thread is not None:
            raise RuntimeError(f"{self._name} has a job that was not collected; it runs one at a time")
        # A daemon only so that a disk that hangs cannot keep a stopped process from ending.
        self._thread = threading.Thread(target=self._run, args=(job,), name=self._name, daemon=True)
        self._thread.start()

    def collect(self, *, wait: bool = False) -> Outcome | None:
        """The outcome of the job, once; None while it runs, or if there is none."""
        if self._thread is None or (self._thread.is_alive() and not wait):
            return None
        self._thread.join()
        self._thread = None
        return self._outcome

    def __enter__(self) -> Background:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if self._thread is not None:
            self._thread.join(ABANDON_S if kind is KeyboardInterrupt else None)

    def _run(self, job: Callable[[], Any]) -> None:
        try:
            self._outcome = Outcome(value=job())
        except BaseException as error:  # stage boundary
            self._outcome = Outcome(error=error)
