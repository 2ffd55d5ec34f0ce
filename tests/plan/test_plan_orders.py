"""Laws of every order, and what each of them is known for."""

from __future__ import annotations

import json
import subprocess
import sys
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_vectors import PRODUCTION, count_vectors

from draftsmith.errors import PlanError
from draftsmith.plan import POLICIES, audit_order
from draftsmith.plan.orders.base import min_adjacent_repeats, min_longest_run
from draftsmith.plan.orders.kernel import extend_order
from draftsmith.plan.orders.quota import draw_weights, quota_order

KEYS = st.integers(0, 2**64 - 1)


@given(counts=count_vectors(), key=KEYS, policy=st.sampled_from(sorted(POLICIES)))
@settings(max_examples=150, deadline=None)
def test_every_order_holds_every_batch_exactly_once(counts: list[int], key: int, policy: str) -> None:
    order = POLICIES[policy](counts, key)
    assert np.bincount(order.sequence, minlength=len(counts)).tolist() == counts


@given(counts=count_vectors(), key=KEYS, phase=st.booleans())
@settings(max_examples=80, deadline=None)
def test_the_certificate_of_quota_holds(counts: list[int], key: int, phase: bool) -> None:
    order = quota_order(counts, key, phase=phase)
    audit = audit_order(order.sequence, counts)
    assert audit.longest_run == order.certificate["longest_run"] == min_longest_run(counts)
    bound = order.certificate["bound"]
    if bound is not None:
        start = 1 if "random" in order.certificate["bound_is_from"] else 0
        assert audit.max_drift <= bound + start


@pytest.mark.parametrize("seed", range(3))
def test_quota_on_the_production_counts_reaches_its_figures(seed: int) -> None:
    audit = audit_order(POLICIES["quota"](PRODUCTION, seed).sequence, PRODUCTION)
    assert audit.adjacent_repeats == 0
    assert audit.longest_run == 1
    assert audit.max_drift < 2
    assert min(audit.exhaustion) >= 0.999
    assert max(audit.windows[8], audit.windows[32]) < 2
    nominal = audit_order(POLICIES["quota-nominal"](PRODUCTION, seed).sequence, PRODUCTION)
    assert nominal.max_drift < 1
    assert nominal.adjacent_repeats == 0


def test_diversity_first_exhausts_the_small_buckets_and_ends_in_one_long_run() -> None:
    audits = [audit_order(POLICIES["diversity-first"](PRODUCTION, seed).sequence, PRODUCTION) for seed in range(8)]
    assert np.mean([audit.early_rate[-1] for audit in audits]) == pytest.approx(0.327, abs=0.005)
    assert np.mean([max(audit.exhaustion[:5]) for audit in audits]) == pytest.approx(0.921, abs=0.005)
    assert np.mean([audit.tail for audit in audits]) == pytest.approx(3658, abs=160)


def test_weighted_has_the_runs_of_independent_draws() -> None:
    audits = [audit_order(POLICIES["weighted"](PRODUCTION, seed).sequence, PRODUCTION) for seed in range(5)]
    share = PRODUCTION[-1] / sum(PRODUCTION)
    assert np.mean([audit.mean_run[-1] for audit in audits]) == pytest.approx(1 / (1 - share), abs=0.02)


def test_stride_drifts_little_and_its_epochs_differ() -> None:
    first, second = (POLICIES["stride"](PRODUCTION, key).sequence for key in (1, 2))
    audit = audit_order(first, PRODUCTION, previous=second)
    assert audit.max_drift < 3
    assert audit.overlap is not None
    assert audit.overlap < 0.4


def test_quota_with_a_random_start_does_not_begin_every_epoch_alike() -> None:
    counts = [40, 30, 20, 10]
    firsts = [int(POLICIES["quota"](counts, key).sequence[0]) for key in range(600)]
    rates = np.bincount(firsts, minlength=4) / 600
    assert np.abs(rates - np.array(counts) / 100).max() < 0.06


def test_draw_weights_give_the_rates_of_the_counts() -> None:
    weights = np.array(draw_weights(PRODUCTION), dtype=float)
    weights /= weights.sum()
    rates = weights * (1 - weights)
    assert rates / rates.sum() == pytest.approx(np.array(PRODUCTION) / sum(PRODUCTION), abs=1e-6)


def test_orders_are_the_same_on_every_platform() -> None:
    """Pinned: a change of any of these is a change of PLAN_VERSION."""
    counts = [3, 5, 8, 1]
    found = {name: "".join(map(str, POLICIES[name](counts, 7).sequence.tolist())) for name in sorted(POLICIES)}
    assert found == PINNED


def test_an_order_does_not_depend_on_the_process_that_made_it() -> None:
    program = (
        "import json; from draftsmith.plan import POLICIES; "
        "print(json.dumps({name: POLICIES[name]([30, 50, 81], 3).sequence.tolist() for name in POLICIES}))"
    )
    elsewhere = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert json.loads(elsewhere.stdout) == {
        name: POLICIES[name]([30, 50, 81], 3).sequence.tolist() for name in POLICIES
    }


@given(counts=count_vectors(), key=KEYS)
@settings(max_examples=40, deadline=None)
def test_the_compiled_order_equals_the_plain_one(counts: list[int], key: int) -> None:
    pytest.importorskip("numba")
    plain = quota_order(counts, key, phase=True, compiled=False)
    fast = quota_order(counts, key, phase=True, compiled=True)
    assert plain.sequence.tolist() == fast.sequence.tolist()
    assert plain.certificate == fast.certificate


def test_the_compiled_loop_takes_arrays_and_gives_the_same_without_numba(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop itself, run uncompiled on the arrays that the compiled one gets."""
    plain = quota_order([30, 50, 81], 5, phase=True, compiled=False)

    def as_array(sequence: list[int]) -> np.ndarray:
        return np.asarray(sequence, dtype=np.int64)

    monkeypatch.setattr("draftsmith.plan.orders.quota.compiled_extend", lambda total, wanted: (extend_order, as_array))
    assert quota_order([30, 50, 81], 5, phase=True).sequence.tolist() == plain.sequence.tolist()


def test_a_bound_may_be_asked_for() -> None:
    order = quota_order(PRODUCTION, 1, phase=False, bounds=[Fraction(82, 100), None])
    assert order.certificate["bound"] == 0.82
    assert audit_order(order.sequence, PRODUCTION).max_drift <= 0.82


@given(counts=count_vectors(), key=KEYS)
@settings(max_examples=60, deadline=None)
def test_without_a_bound_an_order_is_always_found_at_the_first_attempt(counts: list[int], key: int) -> None:
    order = quota_order(counts, key, phase=False, bounds=[None])
    assert order.certificate["attempts"] == 1
    assert audit_order(order.sequence, counts).longest_run == min_longest_run(counts)


def test_a_bound_that_no_order_meets_is_refused() -> None:
    with pytest.raises(PlanError, match="allow a wider bound"):
        quota_order([3, 5, 8], 0, phase=False, bounds=[Fraction(1, 10)])


def test_majority_buckets_repeat_at_least_as_often_as_they_must() -> None:
    counts = [10, 30, 200]
    audit = audit_order(POLICIES["quota"](counts, 0).sequence, counts)
    assert audit.min_adjacent_repeats == min_adjacent_repeats(counts) == 159
    assert audit.adjacent_repeats >= 159
    assert audit.longest_run == audit.min_longest_run == 5


PINNED = {
    "diversity-first": "10212021021321222",
    "quota": "32102121202120212",
    "quota-nominal": "20212121202021213",
    "sequential": "00011111222222223",
    "shuffle": "02211021121223022",
    "soft-anti-repeat": "10212021120322212",
    "stride": "21220121202132120",
    "weighted": "10221121020322221",
}
