"""One channel: what a stage makes, handed on in the order of the plan. Pure: no threads, no clock.

The channel of a stage is a window over sequence numbers. A number enters the window when its work is first handed to
a worker and leaves it when the stage after takes the result. In between it is running, given back after a failure, or
done and waiting for its turn. Numbers enter and leave in order, whatever order they are done in.
"""

from __future__ import annotations

import heapq
from typing import Any, NamedTuple


class Work(NamedTuple):
    """One attempt at one item by one worker. Only the newest attempt at a number counts. Sorts by number.

    excused: attempts before that came to nothing for another reason than the item.
    """

    seq: int
    attempt: int
    worker: int
    item: Any
    excused: int = 0


class Channel:
    """The window of one stage. `dispatched` and `taken` are its ends; at most `max_items` numbers lie between them."""

    def __init__(self, num_workers: int, max_items: int) -> None:
        self.max_items = max_items
        self.alive = set(range(num_workers))
        self.away: set[int] = set()  # lost, and perhaps coming back
        self.dead: set[int] = set()  # lost, and known not to come back
        self.dispatched = 0
        self.taken = 0
        self.num_done = 0
        self.num_retries = 0
        self.results: dict[int, Any] = {}
        self.running: dict[int, Work] = {}
        self.returned: list[Work] = []

    @property
    def has_room(self) -> bool:
        return self.dispatched - self.taken < self.max_items

    @property
    def has_next(self) -> bool:
        """Whether the result that comes next in order is there."""
        return self.taken in self.results

    def settled(self, end: int) -> bool:
        """Whether every number below `end` is done, so that no worker is needed any more."""
        return self.dispatched >= end and not self.returned and all(seq >= end for seq in self.running)

    def start(self, worker: int, item: Any) -> Work:
        """First attempt at the next number."""
        work = Work(self.dispatched, 1, worker, item)
        self.dispatched += 1
        self.running[work.seq] = work
        return work

    def restart(self, worker: int) -> Work:
        """Another attempt at the lowest number that was given back."""
        work = heapq.heappop(self.returned)._replace(worker=worker)
        self.running[work.seq] = work
        return work

    def counts(self, work: Work) -> bool:
        """Whether this attempt is the one that is waited for; late and repeated reports of others are dropped."""
        current = self.running.get(work.seq)
        return current is not None and (current.attempt, current.worker) == (work.attempt, work.worker)

    def finish(self, work: Work, result: Any) -> None:
        del self.running[work.seq]
        self.results[work.seq] = result
        self.num_done += 1

    def fence(self, worker: int) -> None:
        """Retire a worker that failed, while another one lives; the last one has to try again itself."""
        if self.alive - {worker}:
            self.alive.discard(worker)

    def lose(self, worker: int) -> bool:
        """Let a worker go until it is known whether it comes back; false if that is known already."""
        if worker in self.dead:
            return False
        self.alive.discard(worker)
        self.away.add(worker)
        return True

    def bring_back(self, worker: int, *, able: bool) -> None:
        """It is known now. One that is not able is retired, unless it is the last one: that has to fail."""
        self.away.discard(worker)
        if not able:
            self.dead.add(worker)
        if able or not (self.alive or self.away):
            self.alive.add(worker)

    def give_back(self, work: Work, *, excused: bool) -> None:
        """The number keeps its place in the window and what was credited for it."""
        del self.running[work.seq]
        self.num_retries += not excused
        heapq.heappush(self.returned, work._replace(attempt=work.attempt + 1, excused=work.excused + excused))

    def take(self) -> Any:
        """The result that comes next in order, which `has_next` promised."""
        result = self.results.pop(self.taken)
        self.taken += 1
        return result

    def cut(self, end: int) -> None:
        """Forget numbers from `end` on; those still running are dropped when they report."""
        self.results = {seq: result for seq, result in self.results.items() if seq < end}
        self.returned = [work for work in self.returned if work.seq < end]
        heapq.heapify(self.returned)
