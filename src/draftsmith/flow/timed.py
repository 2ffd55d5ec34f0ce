"""The machine with its accounts: every operation is told the time. Pure: the clock is the caller's.

The shell of threads and the simulations of the tests drive this same class, one with real time, the others with theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from draftsmith.flow.accounts import Account, FlowStats, stage_stats
from draftsmith.flow.channel import Work
from draftsmith.flow.machine import INPUT, NOTHING, OVER, Machine, Need


class TimedMachine:
    """Tells who can go on after each operation, and where everybody's time went."""

    def __init__(
        self,
        machine: Machine,
        *,
        names: Sequence[str],
        advice: Sequence[str],
        places: Sequence[Callable[[], Sequence[str]]] | None = None,
        unit: str = "items",
    ) -> None:
        self.machine = machine
        self.names = names
        self.accounts = [Account(len(channel.alive)) for channel in machine.channels] + [Account(1)]
        self.last_event = 0.0
        self._advice = advice
        self._places = [tuple] * len(names) if places is None else places
        self._unit = unit
        self._units: dict[int, int] = {}
        self._started = 0.0
        self._credit_s = 0.0
        self._wants_since: float | None = None

    def open(self, now: float) -> None:
        """Everybody is there, and free."""
        self._started = self.last_event = now
        for account in self.accounts:
            account.open(now)

    def take(self, stage: int, worker: int, now: float) -> Work:
        """A free worker starts on what `need` promised."""
        self._begin(stage, now)
        self.accounts[stage].by_worker[worker].began = now
        return self.machine.take(stage, worker)

    def deliver(self, now: float) -> Any:
        """The consumer starts on the next item."""
        self._begin(self.machine.consumer, now)
        return self.machine.deliver()

    def finish(self, stage: int, work: Work, result: Any, now: float) -> None:
        """A worker is free again and leaves a result."""
        self._end(stage, now)
        pace = self.accounts[stage].by_worker[work.worker]
        pace.busy_s += now - pace.began
        if self.machine.finish(stage, work, result):
            pace.num_done += self._count(stage, work.seq)

    def fail(
        self,
        stage: int,
        work: Work,
        error: BaseException,
        now: float,
        *,
        attempts: int,
        lost: bool = False,
        excused: bool = False,
    ) -> bool:
        """A worker is free again and leaves an error; true if its item gets another attempt. See Machine.fail."""
        self._end(stage, now)
        return self.machine.fail(stage, work, error, attempts=attempts, lost=lost, excused=excused)

    def consumed(self, now: float) -> None:
        """The consumer is done with its item and asks for the next one."""
        self._end(self.machine.consumer, now)
        self._count(self.machine.consumer, self.machine.channels[-1].taken - 1)
        self.machine.take_back()

    def want(self, parts: Sequence[int], now: float) -> None:
        """The source has made an item and waits until it may enter."""
        self._end(0, now)
        self._wants_since = now
        self.machine.want(parts)

    def admit(self, work: Work, item: Any, units: int, now: float) -> None:
        self._stop_wanting(now)
        if units:
            self._units[work.seq] = units
        self.last_event = now
        self.machine.admit(work, item)
        self._count(0, work.seq)

    def close(self, work: Work, now: float) -> None:
        """The source has nothing more, or nobody wants what it has."""
        if self._wants_since is None:
            self._end(0, now)
        self._stop_wanting(now)
        self.machine.close(work)

    def retire(self, stage: int, now: float) -> None:
        """A worker that was fenced or lost is free no longer; its time does not count any more."""
        self.accounts[stage].switch(now, waiting=-1)

    def bring_back(self, stage: int, worker: int, now: float, *, able: bool) -> bool:
        """A worker that was lost is free again, if it is able or the last one. False if nobody waits for it."""
        channel = self.machine.channels[stage]
        if worker not in channel.away or self.machine.left:
            return False
        channel.bring_back(worker, able=able)
        if worker in channel.alive:
            self.accounts[stage].switch(now, waiting=1)
        return True

    def wake(self, now: float, asleep: Sequence[int]) -> Iterator[tuple[int, Need]]:
        """Stages whose workers can go on (NOTHING: one of them) or go home (OVER: all of them), of those that sleep.

        asleep: how many do, by stage.
        """
        for stage, count in enumerate(asleep):
            if not count:
                continue
            need = self.machine.need(stage)
            if need is NOTHING:
                yield stage, need
            elif need is OVER:
                self.accounts[stage].wait_for(INPUT, now)
                yield stage, need
            else:
                self.accounts[stage].wait_for(need, now)

    def stats(self, now: float) -> FlowStats:
        credit, wall_s = self.machine.credit, now - self._started
        wanting = 0.0 if self._wants_since is None else now - self._wants_since
        stages = tuple(
            stage_stats(self.machine, stage, account, now, name=name, advice=advice, places=places())
            for stage, (account, name, advice, places) in enumerate(
                zip(self.accounts, self.names, self._advice, self._places, strict=True)
            )
        )
        return FlowStats(
            stages=stages,
            wall_s=wall_s,
            credited_bytes=credit.used,
            peak_bytes=credit.peak,
            budget_bytes=credit.budget_bytes,
            waits_for_credit=(self._credit_s + wanting) / wall_s if wall_s > 0 else 0.0,
            unit=self._unit,
        )

    def _begin(self, stage: int, now: float) -> None:
        self.last_event = now
        self.accounts[stage].switch(now, waiting=-1, busy=1)

    def _end(self, stage: int, now: float) -> None:
        self.last_event = now
        self.accounts[stage].switch(now, waiting=1, busy=-1)

    def _count(self, stage: int, seq: int) -> int:
        """Units of an item that a stage is done with; it counts as one where they are not known."""
        if not self._units:
            return 1
        found = self._units.pop(seq, 0) if stage == self.machine.consumer else self._units.get(seq, 0)
        self.accounts[stage].num_units += found
        return found

    def _stop_wanting(self, now: float) -> None:
        if self._wants_since is not None:
            self._credit_s += now - self._wants_since
            self._wants_since = None
