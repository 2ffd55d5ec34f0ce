"""The view of a run while it trains: a picture that is redrawn in a terminal, a line now and then elsewhere.

Nothing here starts a thread: it is drawn by the loop, between two steps. A drawing takes milliseconds, so how often
there is one follows from what the last one took: all of them together stay below `MAX_SHARE` of the time.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import TracebackType

from rich.console import Console
from rich.live import Live

from draftsmith.flow import FlowStats
from draftsmith.observe.picture import Picture, one_line
from draftsmith.observe.snapshot import Snapshot, flow_shares
from draftsmith.observe.tail import Row
from draftsmith.observe.tally import Tally

MAX_SHARE = 0.001
MIN_INTERVAL_S = 0.5


class TrainingView:
    """A listener of the journal. Enter it for as long as something trains; leaving it leaves a clean terminal.

    `stats` is asked when something is drawn. Outside a terminal, or in one that cannot move its cursor, a line is
    printed at most every `seconds_between`.
    """

    def __init__(
        self,
        title: str,
        stats: Callable[[], FlowStats],
        *,
        base_lr: float | None = None,
        console: Console | None = None,
        seconds_between: float = 10.0,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._title = title
        self._stats = stats
        self._console = console or Console(stderr=True, highlight=False)
        self._tally = Tally(title, base_lr=base_lr)
        self._clock = clock
        self._seconds_between = seconds_between
        self._due = float("-inf")
        self._now = 0.0
        self._live: Live | None = None

    def __enter__(self) -> TrainingView:
        if self._console.is_terminal and not self._console.is_dumb_terminal:
            self._live = Live(
                console=self._console,
                auto_refresh=False,
                redirect_stdout=sys.stdout.isatty(),  # what goes to a file is none of our business
                vertical_overflow="crop",
            )
            self._live.start()
            self._live.update(Picture(Snapshot(self._title, "waiting for the first batch")), refresh=True)
        else:
            self._print(f"{self._title} ...")
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        """The last picture stays."""
        if self._live is None:
            return
        try:
            if self._now:
                self._live.update(self._picture(), refresh=False)
        finally:
            self._live.stop()

    def metrics(self, row: Row) -> None:
        """Count a row, and draw if it is time."""
        self._tally.metrics(row)
        self._now = row["time"]
        began = self._clock()
        if began < self._due:
            return
        if self._live is None:
            self._print(f"{self._title}: {one_line(self._picture().snapshot)}")
            self._due = began + self._seconds_between
            return
        self._live.update(self._picture(), refresh=True)
        took_s = self._clock() - began
        self._due = began + took_s + max(MIN_INTERVAL_S, took_s / MAX_SHARE)

    def event(self, row: Row) -> None:
        """Count an event. It is drawn with the next row, for events may come from other threads."""
        self._tally.event(row)

    def _picture(self) -> Picture:
        return Picture(self._tally.snapshot(self._now, flow=flow_shares(self._stats())))

    def _print(self, text: str) -> None:
        self._console.print(text, markup=False, soft_wrap=True)
