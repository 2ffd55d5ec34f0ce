"""Who is slow, in words, with one thing to do about it."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from draftsmith.flow.accounts import FlowStats, StageStats

BUSY_ENOUGH = 0.85  # a stage that works this much of its time is what everybody waits for
WAITS_MUCH = 0.25
SLOW_WORKER = 0.75  # of the middle rate of a stage's workers; what is slower has a worse device, or too much else to do


@dataclass(frozen=True)
class Verdict:
    """`bottleneck` is the name of a stage, or of what bounds the pipeline: budget_bytes, max_items."""

    bottleneck: str
    text: str


def verdict(stats: FlowStats) -> Verdict:
    """The bottleneck and one recommendation. A stage that is busy comes before a bound that holds others back."""
    slowest = max(stats.stages, key=lambda stage: (stage.busy, stage.busy_s))
    if slowest.wall_s == 0:
        return Verdict("", "nothing has run yet")
    if slowest.busy < BUSY_ENOUGH and stats.waits_for_credit > WAITS_MUCH:
        return Verdict(
            "budget_bytes",
            f"the byte budget holds the pipeline back: {stats.waits_for_credit:.0%} of the time the next item did not "
            f"fit, and no stage is busy more than {slowest.busy:.0%}; raise flow.budget_bytes",
        )
    if slowest.busy < BUSY_ENOUGH and slowest.blocked > WAITS_MUCH:
        return Verdict(
            "max_items",
            f"the queues are too short: {slowest.name} waits for room {slowest.blocked:.0%} of its time, and no stage "
            f"is busy more than {slowest.busy:.0%}; raise flow.max_items",
        )
    return Verdict(slowest.name, _slowest_in_words(stats, slowest))


def shares(stats: FlowStats) -> str:
    """All stages in one line: name, busy/starved/blocked in percent."""
    return ", ".join(f"{stage.name} {stage.busy:.0%}/{stage.starved:.0%}/{stage.blocked:.0%}" for stage in stats.stages)


def _slowest_in_words(stats: FlowStats, slowest: StageStats) -> str:
    others = [stage for stage in stats.stages if stage is not slowest]
    next_busiest = max(others, key=lambda stage: stage.busy)
    text = f"{slowest.name} is the bottleneck: busy {slowest.busy:.0%} at {stats.rate(slowest):,.0f} {stats.unit}/s"
    if slowest.busy - next_busiest.busy < 0.05:
        text += f", and {next_busiest.name} nearly as much ({next_busiest.busy:.0%}): they are balanced"
    text += slow_workers(slowest)
    return f"{text}; {slowest.advice}" if slowest.advice else text


def slow_workers(stage: StageStats) -> str:
    """Names workers that are much slower than the others of their stage, where they are few; else nothing."""
    rates = {index: rate for index, rate in enumerate(stage.rates) if rate > 0}
    if len(rates) < 2:
        return ""
    usual = statistics.median_high(rates.values())
    slow = [index for index, rate in rates.items() if rate < SLOW_WORKER * usual]
    named = [f"worker {index} ({stage.places[index]})" if stage.places else f"worker {index}" for index in slow]
    rest = f"the others do {usual:,.0f} a second while they work"
    return f"; {' and '.join(named)} at {min(rates.values()):,.0f} is slow: {rest}" if slow else ""
