"""Ranks go at the pace of the slowest: who that is, and what the others lose by it."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from draftsmith.distributed import Agreement, Peers

NOTABLE = 0.1  # share of the time; what batches of unequal size cost evens out between ranks


class Pace:
    """Agrees before every step on the first rank's clock and anybody's signal, and counts how long each rank took."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._since = time.monotonic()
        self._together_s = 0.0  # within a step, in sums that all ranks wait for
        self._mark = 0.0
        self._took_s = [0.0] * peers.size
        self._slowest_s = 0.0

    def agree(self, seconds: float, signal: int | None, *, save: bool) -> Agreement:
        """What is the same on all ranks before a step. See Peers.agree."""
        took_s = time.monotonic() - self._since - self._together_s
        agreed = self._peers.agree(seconds, signal, save=save, mark=self._mark, took_s=took_s)
        self._since, self._together_s = time.monotonic(), 0.0
        for rank, each in enumerate(agreed.took_s):
            self._took_s[rank] += each
        self._slowest_s += max(agreed.took_s, default=0.0)
        return agreed

    @contextmanager
    def together(self) -> Iterator[None]:
        """What is done here takes all ranks the same time: that of the slowest."""
        began = time.monotonic()
        yield
        self._together_s += time.monotonic() - began

    def did(self, grad_norm: float) -> None:
        """Remember what must be the same on every rank."""
        self._mark = grad_norm if math.isfinite(grad_norm) else -1.0

    def summary(self) -> dict[str, Any]:
        """For metrics.jsonl and summary.json: by rank, the share of the time that it waited for the slowest."""
        if self._peers.size == 1 or not self._slowest_s:
            return {}
        waited = [round(max(0.0, 1 - took / self._slowest_s), 4) for took in self._took_s]
        return {"ranks": {"waited": waited, "verdict": verdict(waited, self._peers.hosts)}}


def verdict(waited: Sequence[float], hosts: Sequence[str]) -> str:
    """Names the ranks that all others wait for notably longer than for anybody, where they are no more than half.

    waited: by rank, the share of its time that it waits for the slowest.
    """
    slow = [rank for rank, each in enumerate(waited) if each - min(waited) < NOTABLE]
    others = [each for rank, each in enumerate(waited) if rank not in slow]
    if len(slow) > len(others):
        return f"waiting for each other costs ranks {100 * sum(waited) / len(waited):.0f} % of the time"
    who = " and ".join(f"rank {rank} on {hosts[rank]}" for rank in slow)
    verb, wait = "is" if len(slow) == 1 else "are", 100 * sum(others) / len(others)
    return f"{who} {verb} slow: the others wait {wait:.0f} % of the time"
