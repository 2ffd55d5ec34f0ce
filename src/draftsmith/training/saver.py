"""Saves beside training: when it is due, one at a time; what failed is tried again, and only so long.

The step that is due pays for a copy in memory. Writing, hashing and syncing happen in the background, then old
checkpoints go: only once a newer one has been read back and found whole.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftsmith.config import CheckpointConfig
from draftsmith.errors import CheckpointError
from draftsmith.files import remove_directory
from draftsmith.flow import Background
from draftsmith.observe import Journal
from draftsmith.training.checkpoint import (
    Snapshot,
    checkpoint_directories,
    step_of,
    take_part,
    take_snapshot,
    write_snapshot,
)
from draftsmith.training.step import TrainState

RETRY_SHARE = 0.25  # of an interval, after a save that failed


@dataclass
class Schedule:
    """When a checkpoint is due, from steps and seconds alone; 0 switches one of the two off."""

    every_steps: int
    every_s: float
    saved: tuple[int, float]  # step and second that the last good checkpoint holds, or where this process began
    tried: tuple[int, float] | None = None  # of the last try, while it has not succeeded

    def due(self, step: int, seconds: float) -> bool:
        """Is it time to save, or to try again?"""
        share, (since_step, since_s) = (1.0, self.saved) if self.tried is None else (RETRY_SHARE, self.tried)
        return self._passed(step - since_step, seconds - since_s, share)

    def overdue(self, step: int, seconds: float) -> bool:
        """Are saves failing, and the last good one two intervals old?"""
        return self.tried is not None and self._passed(step - self.saved[0], seconds - self.saved[1], 2.0)

    def _passed(self, steps: int, seconds: float, share: float) -> bool:
        by_steps = self.every_steps > 0 and steps >= max(1.0, share * self.every_steps)
        return by_steps or (self.every_s > 0 and seconds >= share * self.every_s)


@dataclass(frozen=True)
class _Job:
    """A save that is under way: which step, when it was begun, for how long training stood still."""

    step: int
    began: float
    blocked_s: float


class Saver:
    """Owns checkpoints/ of a run while it trains. `alarm` tells people at once what the journal may be unable to.

    `facts`: what the record of a checkpoint holds besides the state and the lengths of the journal's files.
    """

    def __init__(
        self,
        run: Path,
        config: CheckpointConfig,
        background: Background,
        journal: Journal,
        *,
        facts: Callable[[TrainState], dict[str, Any]],
        alarm: Callable[[str], None],
        resumed_step: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.blocked_s = 0.0  # for how long training has stood still for checkpoints
        self._run, self._config, self._background, self._journal = run, config, background, journal
        self._facts, self._alarm, self._clock = facts, alarm, clock
        self._saved_step = resumed_step
        self._schedule = Schedule(config.every_steps, 60 * config.every_minutes, (resumed_step or 0, clock()))
        self._job: _Job | None = None
        self._error = CheckpointError("nothing was saved")

    @property
    def saved_step(self) -> int | None:
        """The newest step that is on disk."""
        return self._saved_step

    def wants(self, state: TrainState) -> bool:
        """Call between steps: is this one due? Raises CheckpointError when saving has failed for two intervals."""
        self._collect(wait=False)
        is_new = state.step not in (0, self._saved_step)
        return is_new and self._job is None and self._schedule.due(state.step, self._clock())

    def save(self, state: TrainState) -> None:
        """Save this step beside training, once what is under way is done. A failure is reported and tried again.

        Where a drafter is spread over ranks, the others call it too, on their `Bystander`.
        """
        began = self._clock()
        self._collect(wait=True)
        if state.step == self._saved_step or not self._has_synced(state.step, began):
            take_part(state)  # the others cannot know
            return
        snapshot = take_snapshot(state, {**self._facts(state), "journal_bytes": self._journal.num_bytes})
        keep = set(best_steps(state.acceptance)[: self._config.keep_best])
        self._background.submit(lambda: self._write(snapshot, keep))
        self._job = _Job(state.step, began, self._clock() - began)
        self.blocked_s += self._job.blocked_s

    def save_now(self, state: TrainState) -> None:
        """Save this step and wait until it is on disk. Raises CheckpointError if it cannot be."""
        self.save(state)
        self._collect(wait=True)
        if state.step != self._saved_step:
            raise self._error

    def _has_synced(self, step: int, began: float) -> bool:
        """A checkpoint promises the lines up to its step."""
        try:
            self._journal.sync()
        except OSError as error:
            self._failed(step, began, CheckpointError(f"the journal of {self._run} cannot be written: {error}"))
            return False
        return True

    def _write(self, snapshot: Snapshot, keep: set[int]) -> float:
        """In the background; returns the seconds it took."""
        began = self._clock()
        write_snapshot(self._run, snapshot)
        try:
            retire(self._run, keep_last=self._config.keep_last, keep=keep)
        except OSError as error:
            raise CheckpointError(f"older checkpoints of {self._run} cannot be removed: {error}") from error
        return self._clock() - began

    def _collect(self, *, wait: bool) -> None:
        outcome = self._background.collect(wait=wait)
        if outcome is None or self._job is None:
            return
        job, self._job = self._job, None
        if isinstance(outcome.error, CheckpointError):
            self._failed(job.step, job.began, outcome.error)
            return
        if outcome.error is not None:
            raise outcome.error
        self._saved_step = job.step
        self._schedule.saved, self._schedule.tried = (job.step, job.began), None
        seconds = {"blocked_s": round(job.blocked_s, 4), "write_s": round(outcome.value, 3)}
        self._journal.event("checkpoint", step=job.step, **seconds)

    def _failed(self, step: int, began: float, error: CheckpointError) -> None:
        self._error, self._schedule.tried = error, (step, began)
        self._journal.event("checkpoint_failed", step=step, error=str(error))
        saved = "nothing" if self._saved_step is None else f"step {self._saved_step}"
        if self._schedule.overdue(step, began):
            raise CheckpointError(
                f"{error}; {saved} has been saved for two intervals, so training stops at step {step}. Make room, then "
                "train again with --resume"
            )
        self._alarm(f"step {step} could not be saved ({error}); training goes on, so far {saved} is saved")


class Bystander:
    """Stands where the first rank has its saver: it writes nothing, and gives its part of what is saved."""

    def wants(self, state: TrainState) -> bool:
        return False

    def save(self, state: TrainState) -> None:
        take_part(state)


def best_steps(acceptance: Mapping[int, float]) -> list[int]:
    """Measured steps, those that were accepted best first, earlier ones before equals."""
    return sorted(acceptance, key=lambda step: (-acceptance[step], step))


def retire(run: Path, *, keep_last: int, keep: set[int]) -> None:
    """Remove checkpoints but the newest `keep_last` and the steps of `keep`. The newest must have been verified."""
    for directory in checkpoint_directories(run)[keep_last:]:
        if step_of(directory) not in keep:
            remove_directory(directory)
