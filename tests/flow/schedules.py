"""Random schedules for the machine: who acts next, what fails, what comes late or twice. No threads, no time."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from draftsmith.flow.channel import Work
from draftsmith.flow.machine import Machine, Need

# How a worker may crash: see Machine.fail.
KINDS = [{}, {"lost": True}, {"lost": True, "excused": True}]


class Boom(Exception):  # noqa: N818 - a fault of a test
    """What workers fail with in schedules."""


@dataclass(frozen=True)
class Setting:
    """A pipeline and what it is given. `poison`: (stage, seq) pairs that fail at every attempt."""

    num_workers: tuple[int, ...]
    max_items: tuple[int, ...]
    budget_bytes: int | None
    parts: tuple[tuple[int, ...], ...]
    poison: frozenset[tuple[int, int]] = frozenset()

    @property
    def num_items(self) -> int:
        return len(self.parts)

    @property
    def end(self) -> int:
        """Where the stream must end, whatever the timing."""
        return min([self.num_items, *(seq for _, seq in self.poison)])


def random_setting(rng: random.Random) -> Setting:
    stages = rng.randint(1, 4)
    num_items = rng.randint(0, 8)
    budget = rng.choice([None, 1, 10, 30])
    sizes = [0, 1, 3, 10, 40]  # 40 is more than any budget
    poison = {(rng.randrange(stages), rng.randrange(num_items)) for _ in range(rng.choice([0, 0, 1, 2])) if num_items}
    return Setting(
        num_workers=(1, *(rng.randint(1, 4) for _ in range(stages - 1))),
        max_items=tuple(rng.randint(1, 4) for _ in range(stages)),
        budget_bytes=budget,
        parts=tuple(tuple(rng.choice(sizes) for _ in range(stages)) for _ in range(num_items)),
        poison=frozenset(poison),
    )


@dataclass
class Schedule:
    """A machine and its workers, moved one action at a time; laws are asserted after each."""

    setting: Setting
    machine: Machine = field(init=False)
    holding: dict[tuple[int, int], Work] = field(default_factory=dict)
    ghosts: list[tuple[int, Work]] = field(default_factory=list)
    delivered: list[int] = field(default_factory=list)
    made: Work | None = None
    in_use: bool = False

    def __post_init__(self) -> None:
        setting = self.setting
        self.machine = Machine(setting.num_workers, max_items=setting.max_items, budget_bytes=setting.budget_bytes)

    def free_workers(self) -> Iterator[tuple[int, int]]:
        for stage, channel in enumerate(self.machine.channels):
            for worker in sorted(channel.alive):
                if (stage, worker) not in self.holding and not (stage == 0 and self.made):
                    yield stage, worker

    def actions(self) -> list[tuple[str, int, int]]:
        """What can happen next, without faults."""
        found = [("take", s, w) for s, w in self.free_workers() if self.machine.need(s) is Need.NOTHING]
        found += [("finish", s, w) for s, w in self.holding]
        if self.made is not None and self.machine.need(0) in (Need.NOTHING, Need.OVER):
            found.append(("admit", 0, 0))
        if self.in_use:
            found.append(("ask", self.machine.consumer, 0))
        elif self.machine.need(self.machine.consumer) is Need.NOTHING:
            found.append(("deliver", self.machine.consumer, 0))
        return found

    def act(self, action: str, stage: int, worker: int) -> None:
        getattr(self, f"_{action}")(stage, worker)
        self.check()

    def crash(self, stage: int, worker: int, *, lost: bool = False, excused: bool = False) -> None:
        """The worker fails though nothing is wrong with its item; what it made may still arrive later."""
        work = self.holding[stage, worker]
        if stage == 0 or (not excused and work.attempt - work.excused >= 3):
            return
        del self.holding[stage, worker]
        again = self.machine.fail(stage, work, Boom(), attempts=3, lost=lost, excused=excused)
        assert again or self.machine._is_cut(work.seq)
        self.ghosts.append((stage, work))
        self.check()

    def away(self) -> list[tuple[int, int]]:
        return [(stage, worker) for stage, channel in enumerate(self.machine.channels) for worker in channel.away]

    def bring_back(self, stage: int, worker: int, *, able: bool) -> None:
        """It is known of a lost worker whether it is back, whatever has become of the stream."""
        self.machine.channels[stage].bring_back(worker, able=able)
        self.check()

    def late(self, index: int) -> None:
        """A report of an attempt that no longer counts: late after a failure, or repeated."""
        stage, work = self.ghosts[index % len(self.ghosts)]
        assert not self.machine.finish(stage, work, -1)
        assert not self.machine.fail(stage, work, Boom(), attempts=3)
        self.check()

    def run_without_faults(self, limit: int = 2000) -> None:
        """Everybody goes on; the machine must come to its end."""
        for stage, worker in self.away():
            self.bring_back(stage, worker, able=True)
        for _ in range(limit):
            actions = self.actions()
            if not actions:
                break
            self.act(*actions[0])
        assert self.machine.need(self.machine.consumer) is Need.OVER, "stuck"
        assert not self.holding
        for stage in range(self.machine.consumer):
            assert self.machine.need(stage) is Need.OVER
        assert self.machine.credit.used == 0
        assert self.machine.credit.by_stage == [0] * self.machine.consumer
        if not self.machine.left:
            assert self.delivered == list(range(self.setting.end))
            assert (self.machine.failure is not None) == (self.setting.end < self.setting.num_items)

    def check(self) -> None:
        credit, setting = self.machine.credit, self.setting
        largest = max((sum(parts) for parts in setting.parts), default=0)
        if setting.budget_bytes is not None:
            assert credit.used <= credit.peak <= max(setting.budget_bytes, largest)
            if credit.used > setting.budget_bytes:
                assert len(credit._held) == 1, "an item larger than the budget runs alone"
        assert credit.used == sum(credit.by_stage) == sum(map(sum, credit._held.values()))
        assert self.delivered == list(range(len(self.delivered)))
        for channel in self.machine.channels:
            assert channel.dispatched - channel.taken <= channel.max_items
            assert channel.alive or channel.away
            assert not channel.alive & channel.away

    def _take(self, stage: int, worker: int) -> None:
        self.holding[stage, worker] = self.machine.take(stage, worker)

    def _finish(self, stage: int, worker: int) -> None:
        work = self.holding.pop((stage, worker))
        if stage == 0 and work.seq >= self.setting.num_items:
            self.machine.close(work)
        elif (stage, work.seq) in self.setting.poison:
            self.machine.fail(stage, work, Boom(), attempts=1 if stage == 0 else 3)
        elif stage == 0:
            self.made = work
            self.machine.want(self.setting.parts[work.seq])
        else:
            assert work.item == work.seq
            self.machine.finish(stage, work, work.seq)
            self.ghosts.append((stage, work))

    def _admit(self, _stage: int, _worker: int) -> None:
        work, self.made = self.made, None
        assert work is not None
        if self.machine.need(0) is Need.OVER:
            self.machine.close(work)
        else:
            self.machine.admit(work, work.seq)

    def _deliver(self, _stage: int, _worker: int) -> None:
        self.delivered.append(self.machine.deliver())
        self.in_use = True

    def _ask(self, _stage: int, _worker: int) -> None:
        self.machine.take_back()
        self.in_use = False
