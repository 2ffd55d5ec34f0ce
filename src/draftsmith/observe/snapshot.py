"""A run at one moment, as a view shows it: frozen, and made of nothing but what the journal says."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from typing import Any

from draftsmith.flow import FlowStats, verdict


@dataclass(frozen=True)
class StageShares:
    """One stage: shares of the time of its workers, from 0 to 1, and what waits behind it. None is unknown."""

    name: str
    num_workers: int
    busy: float
    starved: float
    blocked: float
    tokens_per_s: float
    queue_items: int
    queue_bytes: int
    num_retries: int = 0
    max_items: int = 0


@dataclass(frozen=True)
class FlowShares:
    """Where the time of a pipeline goes, and who is slow. `wall_s` is what the shares are shares of."""

    stages: tuple[StageShares, ...]
    verdict: str
    wall_s: float
    credited_bytes: int
    budget_bytes: int | None


class Window:
    """Turns shares since the start into shares of about the last `span_s` seconds, where there are as many."""

    def __init__(self, span_s: float = 30.0) -> None:
        self._span_s = span_s
        self._seen: deque[FlowShares] = deque()

    def recent(self, now: FlowShares) -> FlowShares:
        """The same flow, its shares and rates counted from the newest one seen that is `span_s` older."""
        if self._seen and now.wall_s < self._seen[-1].wall_s:  # another start of the run
            self._seen.clear()
        if not self._seen or now.wall_s > self._seen[-1].wall_s:
            self._seen.append(now)
        while len(self._seen) > 1 and now.wall_s - self._seen[1].wall_s >= self._span_s:
            self._seen.popleft()
        before = self._seen[0]
        if before is now or now.wall_s - before.wall_s < self._span_s / 2:
            return now
        earlier = {stage.name: stage for stage in before.stages}
        stages = tuple(_since(earlier.get(stage.name), stage, before.wall_s, now.wall_s) for stage in now.stages)
        return replace(now, stages=stages, wall_s=now.wall_s - before.wall_s)


@dataclass(frozen=True)
class Snapshot:
    """What is known of a run. None and empty stand for what nobody has written down yet.

    Losses and acceptance are means over the newest batches (see Tally); `loss_before` is that of as many before them,
    `held_out` the newest measurement of acceptance on held-out prompts.
    """

    title: str
    phase: str
    elapsed_s: float = 0.0
    left_s: float | None = None
    progress: float | None = None
    step: int = 0
    epoch: int | None = None
    loss: float | None = None
    loss_before: float | None = None
    loss_by_bucket: tuple[tuple[int, float], ...] = ()
    acceptance: float | None = None
    held_out: float | None = None
    lr: float | None = None
    lr_factor: float | None = None
    grad_norm: float | None = None
    num_skipped: int = 0
    num_spikes: int = 0
    flow: FlowShares | None = None
    last_event: str = ""
    last_event_age_s: float | None = None
    silent_s: float | None = None
    notes: tuple[str, ...] = ()


def flow_shares(stats: FlowStats) -> FlowShares:
    """The flow of this process."""
    stages = tuple(
        StageShares(
            name=stage.name,
            num_workers=stage.num_workers,
            busy=stage.busy,
            starved=stage.starved,
            blocked=stage.blocked,
            tokens_per_s=stats.rate(stage),
            queue_items=stage.queue_items,
            queue_bytes=stage.queue_bytes,
            num_retries=stage.num_retries,
            max_items=stage.max_items,
        )
        for stage in stats.stages
    )
    return FlowShares(stages, verdict(stats).text, stats.wall_s, stats.credited_bytes, stats.budget_bytes)


def recorded_flow(record: Any) -> FlowShares | None:
    """The flow of another process, from `flow` of a row of metrics.jsonl; None if that is not one."""
    try:
        stages = tuple(
            StageShares(
                name=printable(str(name)),
                num_workers=int(found["workers"]),
                busy=float(found["busy"]),
                starved=float(found["starved"]),
                blocked=float(found["blocked"]),
                tokens_per_s=float(found["tokens_per_s"]),
                queue_items=int(found["queue_items"]),
                queue_bytes=int(found["queue_bytes"]),
                num_retries=int(found["retries"]),
                max_items=int(found.get("max_items", 0)),
            )
            for name, found in record["stages"].items()
        )
        budget = record["budget_bytes"]
        return FlowShares(
            stages,
            printable(str(record["verdict"])),
            float(record["wall_s"]),
            int(record["credited_bytes"]),
            None if budget is None else int(budget),
        )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        return None


def _since(before: StageShares | None, now: StageShares, start_s: float, end_s: float) -> StageShares:
    """What happened between two readings of one stage; its number of workers is taken as unchanged."""
    if before is None:
        return now

    def between(earlier: float, later: float) -> float:
        return max(0.0, (later * end_s - earlier * start_s) / (end_s - start_s))

    return replace(
        now,
        busy=min(1.0, between(before.busy, now.busy)),
        starved=min(1.0, between(before.starved, now.starved)),
        blocked=min(1.0, between(before.blocked, now.blocked)),
        tokens_per_s=between(before.tokens_per_s, now.tokens_per_s),
    )


def printable(text: str) -> str:
    """Text from a file on one line, without anything that a terminal would obey."""
    return "".join(letter if letter.isprintable() else " " for letter in text)
