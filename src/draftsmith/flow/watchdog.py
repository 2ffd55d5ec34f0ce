"""Finds out that nothing moves. Waits for a deadline, which every event of the pipeline puts off; it does not poll."""

from __future__ import annotations

import threading
from collections.abc import Callable

from draftsmith.flow.timed import TimedMachine


class Watchdog:
    """Calls `on_stall()` under the lock when the last event is `deadline_s` old, once per stall.

    If that moves nobody within another `grace_s`, `on_hang()` is called, once, under the lock.
    """

    def __init__(
        self,
        lock: threading.Lock,
        deadline_s: float,
        grace_s: float,
        *,
        clock: Callable[[], float],
        timed: TimedMachine,
        on_stall: Callable[[], None],
        on_hang: Callable[[], None],
    ) -> None:
        self._condition = threading.Condition(lock)
        self._deadline_s = deadline_s
        self._grace_s = grace_s
        self._clock = clock
        self._timed = timed
        self._on_stall = on_stall
        self._on_hang = on_hang
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
        stalled = hung = float("-inf")  # the last event before
        with self._condition:
            while not self._stopped:
                last = self._timed.last_event
                waited = self._clock() - last
                if waited < self._deadline_s:
                    self._condition.wait(self._deadline_s - waited)
                elif last > stalled:
                    stalled = last
                    self._on_stall()
                elif waited < self._deadline_s + self._grace_s:
                    self._condition.wait(self._deadline_s + self._grace_s - waited)
                elif last > hung:
                    hung = last
                    self._on_hang()
                else:
                    self._condition.wait(self._deadline_s)
