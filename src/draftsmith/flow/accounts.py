"""Where the time of every stage went: busy + starved + blocked = wall, exactly. Pure: time is handed in.

A worker is busy while it works, blocked while what lies behind it has no room, starved otherwise. The figures are
integrals over the number of workers in each condition, so nothing is lost between two samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from draftsmith.flow.machine import Machine, Need


@dataclass
class WorkerPace:
    """How fast one worker is while it works, in units (or items) per second; failed attempts do not count."""

    busy_s: float = 0.0
    num_done: int = 0
    began: float = 0.0

    @property
    def rate(self) -> float:
        return self.num_done / self.busy_s if self.busy_s > 0 else 0.0


class Account:
    """The time of one stage. It is told when a worker of it starts or stops waiting, or waits for something else."""

    def __init__(self, num_workers: int) -> None:
        self.num_workers = num_workers
        self.num_busy = 0
        self.num_waiting = 0
        self.num_units = 0
        self.by_worker = [WorkerPace() for _ in range(num_workers)]
        self.busy_s = 0.0
        self.starved_s = 0.0
        self.blocked_s = 0.0
        self._reason = Need.INPUT
        self._since = 0.0

    def open(self, now: float) -> None:
        """All workers begin here, free."""
        self._since, self.num_waiting = now, self.num_workers

    def switch(self, now: float, *, busy: int = 0, waiting: int = 0) -> None:
        """Add these to the numbers of busy and waiting workers."""
        self._settle(now)
        self.num_busy += busy
        self.num_waiting += waiting

    def wait_for(self, reason: Need, now: float) -> None:
        """From now on those who wait do so for INPUT, or for ROOM."""
        if reason is not self._reason:
            self._settle(now)
            self._reason = reason

    def times(self, now: float) -> tuple[float, float, float]:
        """Seconds busy, starved and blocked, summed over workers, up to now."""
        self._settle(now)
        return self.busy_s, self.starved_s, self.blocked_s

    def _settle(self, now: float) -> None:
        seconds, self._since = now - self._since, now
        self.busy_s += seconds * self.num_busy
        if self._reason is Need.ROOM:
            self.blocked_s += seconds * self.num_waiting
        else:
            self.starved_s += seconds * self.num_waiting


@dataclass(frozen=True)
class StageStats:
    """One stage up to now. Seconds are summed over workers; units are what the source counts items in, or 0.

    Of the `max_items` results that may be under way, `queue_items` are done and wait; 0 where nothing can. rates: of
    each worker while it works, in units per second, 0 if it has done nothing; places: what to call them.
    """

    name: str
    num_workers: int
    num_done: int
    num_units: int
    num_retries: int
    busy_s: float
    starved_s: float
    blocked_s: float
    queue_items: int
    queue_bytes: int
    advice: str = ""
    max_items: int = 0
    rates: tuple[float, ...] = ()
    places: tuple[str, ...] = ()

    @property
    def wall_s(self) -> float:
        return self.busy_s + self.starved_s + self.blocked_s

    @property
    def busy(self) -> float:
        """Share of the time of its workers, from 0 to 1; so are the next two."""
        return self.busy_s / self.wall_s if self.wall_s > 0 else 0.0

    @property
    def starved(self) -> float:
        return self.starved_s / self.wall_s if self.wall_s > 0 else 0.0

    @property
    def blocked(self) -> float:
        return self.blocked_s / self.wall_s if self.wall_s > 0 else 0.0


@dataclass(frozen=True)
class FlowStats:
    """A pipeline up to now: its stages from source to consumer, and the bytes on credit."""

    stages: tuple[StageStats, ...]
    wall_s: float
    credited_bytes: int
    peak_bytes: int
    budget_bytes: int | None
    waits_for_credit: float
    unit: str = "items"

    def rate(self, stage: StageStats) -> float:
        """Units (or items) per second of wall time that a stage has finished."""
        return (stage.num_units or stage.num_done) / self.wall_s if self.wall_s > 0 else 0.0


def stage_stats(
    machine: Machine,
    stage: int,
    account: Account,
    now: float,
    *,
    name: str,
    advice: str = "",
    places: Sequence[str] = (),
) -> StageStats:
    """Figures of one stage; the queue is what stands between it and the next."""
    busy_s, starved_s, blocked_s = account.times(now)
    is_consumer = stage == machine.consumer
    channel = machine.channels[-1 if is_consumer else stage]
    return StageStats(
        name=name,
        num_workers=account.num_workers,
        num_done=channel.taken if is_consumer else channel.num_done,
        num_units=account.num_units,
        num_retries=0 if is_consumer else channel.num_retries,
        busy_s=busy_s,
        starved_s=starved_s,
        blocked_s=blocked_s,
        queue_items=0 if is_consumer else len(channel.results),
        queue_bytes=0 if is_consumer else machine.credit.by_stage[stage],
        advice=advice,
        max_items=0 if is_consumer else channel.max_items,
        rates=tuple(pace.rate for pace in account.by_worker),
        places=tuple(places),
    )
