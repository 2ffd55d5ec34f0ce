"""Work that nobody waits for: a thread of its own, a bounded queue, and a deadline even for the end.

For what may be slow, hang or fail while the caller must neither stop nor fail: dashboards, notifications.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Generic, TypeVar

T = TypeVar("T")


class BestEffort(Generic[T]):
    """Hands items to `opened`'s function, one by one and in order, in a thread.

    `opened` is entered and left in that thread too, so a slow import or connection holds nobody up. An item that finds
    `max_items` waiting is left out. When the function raises, or has not returned for `patience_s`, everything that
    waits and all that comes later is dropped. What went wrong is told by `trouble`, once.
    """

    def __init__(
        self,
        name: str,
        opened: AbstractContextManager[Callable[[T], None]],
        *,
        max_items: int = 1000,
        patience_s: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self.num_left_out = 0
        self._opened = opened
        self._max_items = max_items
        self._patience_s = patience_s
        self._clock = clock
        self._condition = threading.Condition()
        self._items: deque[T] = deque()
        self._busy_since: float | None = clock()  # opening counts
        self._is_closed = False
        self._is_dropped = False
        self._trouble: str | None = None
        # A daemon, so that one which hangs cannot keep the process from ending.
        self._thread = threading.Thread(target=self._live, name=f"best-effort/{name}", daemon=True)
        self._thread.start()

    def offer(self, item: T) -> None:
        """Leave an item; never waits for the work itself, never raises."""
        with self._condition:
            if self._is_dropped or self._is_closed:
                return
            if self._busy_since is not None and self._clock() - self._busy_since > self._patience_s:
                self._drop(f"has not returned for {self._patience_s:g} s; it gets nothing more")
            elif len(self._items) >= self._max_items:
                self.num_left_out += 1
                if self.num_left_out == 1:
                    self._trouble = f"cannot keep up: {self._max_items:,} rows wait; what comes now is left out"
            else:
                self._items.append(item)
                self._condition.notify()

    def trouble(self) -> str | None:
        """What went wrong since this was asked last, in words, or None."""
        with self._condition:
            told, self._trouble = self._trouble, None
            return told

    def finish(self) -> None:
        """Nothing more is offered; what waits is worked off. Does not wait for it."""
        with self._condition:
            self._is_closed = True
            self._condition.notify()

    def close(self, deadline_s: float) -> None:
        """Let what waits be worked off, for `deadline_s` at most; then leave it."""
        self.finish()
        self._thread.join(max(0.0, deadline_s))
        with self._condition:
            if self._thread.is_alive() and not self._is_dropped:
                waiting = len(self._items)
                self._drop(f"did not end within {deadline_s:g} s; {waiting:,} rows were left out")

    def _drop(self, why: str) -> None:
        self._is_dropped = True
        self._trouble = why
        self._items.clear()
        self._condition.notify()

    def _live(self) -> None:
        try:
            with self._opened as handle:
                while (item := self._next()) is not None:
                    handle(item[0])
        except BaseException as error:  # stage boundary
            with self._condition:
                if not self._is_dropped:
                    text = " ".join(str(error).split())[:200]
                    self._drop(f"failed ({type(error).__name__}: {text}); it gets nothing more")

    def _next(self) -> tuple[T] | None:
        """Wait for an item; None when there will be none."""
        with self._condition:
            self._busy_since = None
            while not self._items and not self._is_closed and not self._is_dropped:
                self._condition.wait()
            self._busy_since = self._clock()
            return (self._items.popleft(),) if self._items and not self._is_dropped else None
