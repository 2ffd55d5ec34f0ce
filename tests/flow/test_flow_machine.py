"""The coordination as a state machine: any schedule, any fault, and it never stops short, reorders or overdraws."""

from __future__ import annotations

import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from schedules import KINDS, Boom, Schedule, Setting, random_setting

from draftsmith.flow.channel import Work
from draftsmith.flow.machine import Machine, Need


def random_schedule(seed: int) -> Schedule:
    """A schedule with crashes, workers that are back, late and repeated reports; now and then the consumer leaves."""
    rng = random.Random(seed)
    schedule = Schedule(random_setting(rng))
    for _ in range(rng.randrange(60)):
        fault = rng.random()
        if fault < 0.15 and schedule.holding:
            schedule.crash(*rng.choice(list(schedule.holding)), **rng.choice(KINDS))
        elif fault < 0.25 and schedule.ghosts:
            schedule.late(rng.randrange(len(schedule.ghosts)))
        elif fault < 0.255:
            schedule.machine.leave()
        elif fault < 0.3 and schedule.away():
            schedule.bring_back(*rng.choice(schedule.away()), able=rng.random() < 0.5)
        elif actions := schedule.actions():
            schedule.act(*rng.choice(actions))
    return schedule


def test_P5_P6_ten_thousand_schedules_with_faults_keep_the_laws_and_then_finish() -> None:
    for seed in range(10_000):
        schedule = random_schedule(seed)
        try:
            schedule.run_without_faults()
        except AssertionError as error:
            raise AssertionError(f"schedule {seed}: {schedule.setting}") from error


class AnySchedule(RuleBasedStateMachine):
    """The same laws under hypothesis, which shrinks what it finds."""

    @initialize(seed=st.integers(0, 2**32 - 1))
    def begin(self, seed: int) -> None:
        self.schedule = Schedule(random_setting(random.Random(seed)))

    @rule(pick=st.integers(0, 100))
    def go_on(self, pick: int) -> None:
        if actions := self.schedule.actions():
            self.schedule.act(*actions[pick % len(actions)])

    @precondition(lambda self: self.schedule.holding)
    @rule(pick=st.integers(0, 100), how=st.sampled_from(KINDS))
    def crash(self, pick: int, how: dict[str, bool]) -> None:
        holding = list(self.schedule.holding)
        self.schedule.crash(*holding[pick % len(holding)], **how)

    @precondition(lambda self: self.schedule.away())
    @rule(pick=st.integers(0, 100), able=st.booleans())
    def bring_back(self, pick: int, able: bool) -> None:
        away = self.schedule.away()
        self.schedule.bring_back(*away[pick % len(away)], able=able)

    @precondition(lambda self: self.schedule.ghosts)
    @rule(pick=st.integers(0, 100))
    def late(self, pick: int) -> None:
        self.schedule.late(pick)

    @invariant()
    def laws_hold(self) -> None:
        if hasattr(self, "schedule"):
            self.schedule.check()

    def teardown(self) -> None:
        if hasattr(self, "schedule"):
            self.schedule.run_without_faults()


class TestP6FromEveryStateAFaultFreeSuffixFinishes(AnySchedule.TestCase):  # type: ignore[misc]
    settings = settings(max_examples=100, stateful_step_count=40, deadline=None)


def test_P4_reversed_completion_is_delivered_in_order() -> None:
    setting = Setting((1, 4), (4, 4), None, ((0, 0),) * 4)
    schedule = Schedule(setting)
    while len([key for key in schedule.holding if key[0] == 1]) < 4:
        forward = [action for action in schedule.actions() if not (action[0] == "finish" and action[1] == 1)]
        schedule.act(*forward[0])
    for worker in (3, 2, 1, 0):
        assert schedule.machine.need(2) is Need.INPUT
        schedule.act("finish", 1, worker)
    schedule.run_without_faults()
    assert schedule.delivered == [0, 1, 2, 3]


def machine_with_one_running(*, parts: tuple[int, int] = (4, 6), budget: int = 10) -> tuple[Machine, Work]:
    machine = Machine((1, 2), max_items=(3, 3), budget_bytes=budget)
    first = machine.take(0, 0)
    machine.want(parts)
    machine.admit(first, "zero")
    return machine, machine.take(1, 0)


def test_P5_credit_is_taken_for_all_results_when_an_item_enters_and_given_back_bit_by_bit() -> None:
    machine, work = machine_with_one_running()
    assert machine.credit.used == 10
    machine.take(0, 0)
    machine.want((0, 1))
    assert machine.need(0) is Need.ROOM
    machine.finish(1, work, "ZERO")
    assert machine.credit.used == 6
    assert machine.need(0) is Need.NOTHING
    assert machine.deliver() == "ZERO"
    assert machine.credit.used == 6, "the consumer is still using it"
    machine.take_back()
    assert machine.credit.used == 0


def test_P5_an_item_larger_than_the_budget_runs_alone() -> None:
    machine, work = machine_with_one_running(parts=(0, 99))
    machine.take(0, 0)
    machine.want((0, 0))
    assert machine.need(0) is Need.ROOM
    machine.finish(1, work, None)
    machine.deliver()
    assert machine.need(0) is Need.ROOM
    machine.take_back()
    assert machine.need(0) is Need.NOTHING


def test_P3_a_lost_attempt_keeps_its_credit_and_its_late_result_is_dropped() -> None:
    machine, work = machine_with_one_running()
    assert machine.fail(1, work, Boom(), attempts=3)
    assert machine.credit.used == 10
    assert machine.channels[1].alive == {1}, "the worker that failed is retired while another one lives"
    again = machine.take(1, 1)
    assert (again.seq, again.attempt, again.item) == (0, 2, "zero")
    assert not machine.finish(1, work, "late")
    assert machine.finish(1, again, "good")
    assert machine.deliver() == "good"


def test_an_item_is_tried_three_times_at_most() -> None:
    machine, work = machine_with_one_running()
    assert machine.fail(1, work, Boom(), attempts=99)
    assert machine.fail(1, machine.take(1, 1), Boom(), attempts=99)
    last = machine.take(1, 1)
    assert not machine.fail(1, last, Boom("third"), attempts=99)
    assert machine.failure is not None
    assert str(machine.failure.error) == "third"


def test_a_failure_keeps_its_place_so_that_timing_does_not_decide_what_is_delivered() -> None:
    setting = Setting((1, 3), (4, 4), None, ((0, 0),) * 6, poison=frozenset({(1, 3), (1, 4)}))
    for seed in range(200):
        rng, schedule = random.Random(seed), Schedule(setting)
        while actions := schedule.actions():
            schedule.act(*rng.choice(actions))
        assert schedule.delivered == [0, 1, 2]
        assert schedule.machine.failure is not None
        assert schedule.machine.failure.work.seq == 3


@pytest.mark.parametrize("num_taken", [0, 1, 2])
def test_a_consumer_that_leaves_stops_everything(num_taken: int) -> None:
    schedule = Schedule(Setting((1, 2), (2, 2), 10, ((1, 2),) * 9))
    while len(schedule.delivered) < num_taken:
        schedule.act(*schedule.actions()[-1])
    schedule.machine.leave()
    schedule.run_without_faults()
    assert len(schedule.delivered) == num_taken
