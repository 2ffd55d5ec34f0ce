"""Who is slow: simulated stages of known speed, in simulated time."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import pytest

from draftsmith.flow.accounts import FlowStats, StageStats
from draftsmith.flow.channel import Work
from draftsmith.flow.machine import Machine, Need
from draftsmith.flow.timed import TimedMachine
from draftsmith.flow.verdict import shares, slow_workers, verdict


def simulate(
    seconds: Sequence[float],
    *,
    num_workers: Sequence[int] | None = None,
    max_items: int = 4,
    budget: int | None = None,
    num_items: int = 300,
) -> FlowStats:
    """Stages that take `seconds` per item, the consumer last; every item has 1 byte per stage. Discrete events."""
    workers = list(num_workers or [1] * (len(seconds) - 1))
    machine = Machine(workers, max_items=[max_items] * len(workers), budget_bytes=budget)
    names = [*(f"s{index}" for index in range(len(workers))), "consumer"]
    timed = TimedMachine(machine, names=names, advice=[f"mend {name}" for name in names])
    timed.open(0.0)
    events: list[tuple[float, int, int, int, Work | None]] = []
    free = [(stage, worker) for stage, count in enumerate(workers) for worker in range(count)] + [(len(workers), 0)]
    made: Work | None = None
    now = 0.0

    def begin_what_can_begin() -> None:
        nonlocal made
        progress = True
        while progress:
            progress = False
            list(timed.wake(now, [account.num_waiting for account in timed.accounts]))
            if made is not None and machine.need(0) is Need.NOTHING:
                timed.admit(made, made.seq, 100, now)
                free.append((0, 0))
                made, progress = None, True
            for stage, worker in list(free):
                if machine.need(stage) is Need.NOTHING:
                    free.remove((stage, worker))
                    progress = True
                    work = None if stage == machine.consumer else timed.take(stage, worker, now)
                    if work is None:
                        timed.deliver(now)
                    heapq.heappush(events, (now + seconds[stage], len(events), stage, worker, work))

    begin_what_can_begin()
    while events and machine.channels[-1].taken < num_items:
        now, _, stage, worker, work = heapq.heappop(events)
        if work is None:
            timed.consumed(now)
            free.append((stage, worker))
        elif stage == 0:
            timed.want([1] * len(workers), now)
            made = work
        else:
            timed.finish(stage, work, work.seq, now)
            free.append((stage, worker))
        begin_what_can_begin()
    return timed.stats(now)


@pytest.mark.parametrize("slow", range(4))
@pytest.mark.parametrize("factor", [1.3, 2.0, 4.0])
def test_P14_the_slowest_stage_is_named_and_nothing_is_lost(slow: int, factor: float) -> None:
    seconds = [0.5, 0.4, 0.5, 0.45]
    seconds[slow] = 0.5 * factor
    stats = simulate(seconds)
    found = verdict(stats)
    assert found.bottleneck == stats.stages[slow].name
    assert f"mend {found.bottleneck}" in found.text
    for stage in stats.stages:
        assert stage.wall_s == pytest.approx(stats.wall_s * stage.num_workers, rel=1e-9)
    assert stats.stages[slow].busy > 0.95
    assert all(stage.blocked > stage.starved for stage in stats.stages[:slow])
    assert all(stage.starved > 0.99 * (1 - stage.busy) for stage in stats.stages[slow + 1 :])


def test_P14_workers_that_share_the_work_are_no_bottleneck_though_each_is_slow() -> None:
    stats = simulate([0.1, 3.0, 1.0], num_workers=[1, 4])
    assert verdict(stats).bottleneck == "consumer"
    assert stats.stages[1].busy == pytest.approx(0.75, abs=0.03)
    assert stats.stages[1].wall_s == pytest.approx(4 * stats.wall_s)


def test_P14_a_budget_that_is_too_small_is_the_bottleneck() -> None:
    stats = simulate([0.1, 1.0, 1.0], budget=2)
    assert verdict(stats).bottleneck == "budget_bytes"
    assert "raise flow.budget_bytes" in verdict(stats).text
    assert verdict(simulate([0.1, 1.0, 1.0], budget=50)).bottleneck in {"s1", "consumer"}


def test_P14_queues_that_are_too_short_for_uneven_workers_are_the_bottleneck() -> None:
    for max_items in (1, 2):
        short = simulate([0.1, 1.0, 4.0, 1.0], num_workers=[1, 1, 4], max_items=max_items)
        assert verdict(short).bottleneck == "max_items"
        assert "raise flow.max_items" in verdict(short).text


def test_P14_two_stages_of_one_speed_are_called_balanced() -> None:
    assert "they are balanced" in verdict(simulate([0.1, 1.0, 1.0])).text


def test_rates_are_counted_in_units_and_shares_fit_on_a_line() -> None:
    stats = simulate([0.1, 0.5, 1.0])
    assert stats.rate(stats.stages[-1]) == pytest.approx(100, rel=0.02)
    assert shares(stats).startswith("s0 1")
    assert "\n" not in shares(stats)


def test_nothing_has_run_yet_is_said_so() -> None:
    assert verdict(simulate([1.0, 1.0], num_items=0)).text == "nothing has run yet"


def test_a_worker_that_is_slower_than_the_others_is_named_with_its_place() -> None:
    """Two workers, one of which takes three times as long for the same."""
    machine = Machine([1, 2], max_items=[8, 8])
    places = [tuple, lambda: ("gpu of a", "gpu of b"), tuple]
    timed = TimedMachine(machine, names=["s", "t", "c"], advice=[""] * 3, places=places)
    timed.open(0.0)
    for seq in range(4):
        work = timed.take(0, 0, 0.0)
        timed.want([0, 0], 0.0)
        timed.admit(work, seq, 100, 0.0)
    for _ in range(2):
        held = [timed.take(1, worker, 1.0) for worker in range(2)]
        timed.finish(1, held[0], 0, 2.0)
        timed.finish(1, held[1], 0, 4.0)
    stage = timed.stats(4.0).stages[1]
    assert stage.rates == pytest.approx((100.0, 100 / 3))
    assert slow_workers(stage) == "; worker 1 (gpu of b) at 33 is slow: the others do 100 a second while they work"


@pytest.mark.parametrize("rates", [(), (5.0,), (5.0, 4.0), (0.0, 5.0), (5.0, 5.0, 4.9)])
def test_workers_that_differ_a_little_or_have_done_nothing_are_not_named(rates: tuple[float, ...]) -> None:
    assert slow_workers(StageStats("t", len(rates), 1, 1, 0, 1.0, 0.0, 0.0, 0, 0, rates=rates)) == ""
