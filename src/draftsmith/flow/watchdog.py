"""Finds out that nothing moves. Waits for a deadline, which every event of the pipeline puts off; it does not poll."""

from __future__ import annotations

import threading
from collections.abc import Callable

from draftsmith.flow.timed import TimedMachine


class Watchdog:
    """Calls `on_stall(seconds)` under the lock when the last event is `deadline_s` old; once per stall."""

    def __init__(
        self,
        lock: threading.Lock,
        deadline_s: float,
        clock: Callable[[], float],
        timed: TimedMachine,
        on_stall: Callable[[float], None],
    ) -> None:
        self._condition = threading.Condition(lock)
        self._deadline_s = deadline_s
        self._clock = clock
        self._timed = timed
        self._on_stall = on_stall
        self._stopped = False
        self._thread: threading.Thread | None = None

    def start(self, name: str) -> None:
        self._thread = threading.Thread(target=self._watch, name=name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Wait until it has ended."""
        with self._condition:
            self._stopped = True
            self._condition.notify()
        if self._thread is not None:
            self._thread.join()

    def _watch(self) -> None:
        reported = float("-inf")
        with self._condition:
            while not self._stopped:
                last = self._timed.last_event
                left = last + self._deadline_s - self._clock()
                if left > 0:
                    self._condition.wait(left)
                elif last > reported:
                    reported = last
                    self._on_stall(self._deadline_s)
                else:
                    self._condition.wait(self._deadline_s)
