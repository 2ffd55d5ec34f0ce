"""The coordination of a pipeline as a state machine. Pure: no threads, no clock, so that tests can run any schedule.

Stage 0 is the source, the last one hands its results to the consumer, whose number is the number of stages. The laws:

- Every stage works on 0, 1, 2, ... and hands results on in that order.
- An item is admitted, in order, with the bytes of all its results; at most the budget is credited at any time, or one
  item that is larger.
- A failure that is not retried ends the stream at its number: everything before it is still delivered, so whether a
  run fails does not depend on timing.
- From every state, if workers go on and the consumer takes, everything that was planned is delivered.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from draftsmith.flow.channel import Channel, Work
from draftsmith.flow.credit import Credit

MAX_ATTEMPTS = 3
MAX_EXCUSED = 100


class Need(Enum):
    """What a worker that is free waits for."""

    NOTHING = "ready"
    INPUT = "starved"
    ROOM = "blocked"
    OVER = "over"


NOTHING, INPUT, ROOM, OVER = Need  # looking a member up in its class is slow, and this is asked many times per item


@dataclass(frozen=True)
class Failure:
    """Why the stream ends early."""

    stage: int
    work: Work
    error: BaseException


class Machine:
    """Channels in a row, the credit they share, and where the stream ends."""

    def __init__(
        self, num_workers: Sequence[int], *, max_items: Sequence[int], budget_bytes: int | None = None
    ) -> None:
        self.channels = [Channel(workers, items) for workers, items in zip(num_workers, max_items, strict=True)]
        self.consumer = len(self.channels)
        self.credit = Credit(len(self.channels), budget_bytes)
        self.end: int | None = None
        self.failure: Failure | None = None
        self.left = False
        self._wanted: Sequence[int] | None = None
        self._in_use: int | None = None

    def need(self, stage: int) -> Need:
        """What a free worker of `stage` waits for; OVER says that it may go home."""
        if self.left:
            return OVER
        if stage == self.consumer:
            return self._need_of_consumer()
        channel = self.channels[stage]
        if self.end is not None and (stage == 0 or channel.settled(self.end)):
            return OVER
        if channel.returned:
            return NOTHING
        if stage == 0:
            return self._need_of_source(channel)
        if self.channels[stage - 1].has_next:
            return NOTHING if channel.has_room else ROOM
        return ROOM if self._input_waits_for_credit(stage) else INPUT

    def take(self, stage: int, worker: int) -> Work:
        """Work for a free worker. Only when `need` is NOTHING; a number given back goes before new ones."""
        channel = self.channels[stage]
        if channel.returned:
            return channel.restart(worker)
        return channel.start(worker, self.channels[stage - 1].take() if stage else None)

    def want(self, parts: Sequence[int]) -> None:
        """The source has an item whose results will take these bytes per stage; `need(0)` now says when it fits."""
        self._wanted = parts

    def admit(self, work: Work, item: Any) -> None:
        """Let the wanted item of the source in. Only when `need(0)` is NOTHING."""
        assert self._wanted is not None
        self.credit.admit(work.seq, self._wanted)
        self._wanted = None
        self.finish(0, work, item)

    def finish(self, stage: int, work: Work, result: Any) -> bool:
        """A worker reports a result; false if nobody waits for this attempt any more. Its input is given back."""
        channel = self.channels[stage]
        if not channel.counts(work):
            return False
        channel.finish(work, result)
        if stage:
            self.credit.release(work.seq, stage - 1)
        if self._is_cut(work.seq):
            channel.cut(work.seq)
            self._cut_credit()
            return False
        return True

    def fail(
        self,
        stage: int,
        work: Work,
        error: BaseException,
        *,
        attempts: int = 1,
        lost: bool = False,
        excused: bool = False,
    ) -> bool:
        """A worker reports a failure; true if the item gets another attempt, of `attempts` in all and at most 3.

        lost: the worker is gone, and will be told of again. excused: and the attempt does not count, up to 100 of them.
        """
        channel = self.channels[stage]
        if not channel.counts(work):
            return False
        if lost:
            excused = channel.lose(work.worker) and excused and work.excused < MAX_EXCUSED
        again = excused or work.attempt - work.excused < min(attempts, MAX_ATTEMPTS)
        if again and not self._is_cut(work.seq):
            channel.fence(work.worker)
            channel.give_back(work, excused=excused)
            return True
        del channel.running[work.seq]
        if not self._is_cut(work.seq):
            self.failure = Failure(stage, work, error)
            self._end_at(work.seq)
        self._cut_credit()
        return False

    def close(self, work: Work) -> None:
        """The source has no item for this work: the stream ends here, unless it has ended before."""
        self._wanted = None
        del self.channels[0].running[work.seq]
        if not self._is_cut(work.seq):
            self._end_at(work.seq)

    def take_back(self) -> None:
        """The consumer is done with what it took last."""
        if self._in_use is not None:
            self.credit.release(self._in_use, self.consumer - 1)
            self._in_use = None

    def deliver(self) -> Any:
        """The next item for the consumer. Only when its `need` is NOTHING."""
        self.take_back()
        self._in_use = self.channels[-1].taken
        return self.channels[-1].take()

    def leave(self) -> None:
        """Nobody reads any more: no work is handed out, what waits is forgotten, late results are dropped."""
        self.left = True
        self.take_back()
        for channel in self.channels:
            channel.cut(0)
        self._cut_credit()

    def oldest(self) -> tuple[int, Work] | None:
        """The running attempt that everything else waits for sooner or later, with its stage."""
        running = [(stage, work) for stage, channel in enumerate(self.channels) for work in channel.running.values()]
        return min(running, key=lambda found: found[1].seq, default=None)

    def _need_of_consumer(self) -> Need:
        channel = self.channels[-1]
        if channel.has_next:
            return NOTHING
        if channel.taken == self.end:
            return OVER
        return ROOM if self._input_waits_for_credit(self.consumer) else INPUT

    def _need_of_source(self, channel: Channel) -> Need:
        free = channel.has_room if self._wanted is None else self.credit.fits(self._wanted)
        return NOTHING if free else ROOM

    def _input_waits_for_credit(self, stage: int) -> bool:
        """Nothing is under way to this stage, because what lies behind it holds all credit."""
        if self._wanted is None or self.credit.fits(self._wanted):
            return False
        return self.channels[stage - 1].taken == self.channels[0].num_done

    def _is_cut(self, seq: int) -> bool:
        return self.left or (self.end is not None and seq >= self.end)

    def _end_at(self, seq: int) -> None:
        self.end = seq
        for channel in self.channels:
            channel.cut(seq)
        self._cut_credit()

    def _cut_credit(self) -> None:
        """What is still being computed takes memory, so it keeps its credit until its worker reports."""
        if self.left or self.end is not None:
            running = {seq for channel in self.channels for seq in channel.running}
            self.credit.release_from(0 if self.left else self.end or 0, running)
