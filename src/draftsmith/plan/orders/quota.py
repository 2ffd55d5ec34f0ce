"""The recommended order: a randomised quota without repeats.

At every step one bucket is drawn at random, but never one that would (a) run ahead of its proportional share by more
than `bound` batches, (b) make another bucket miss its own, or (c) lengthen a run beyond the minimum possible. Where the
proportional line starts is drawn too, otherwise every epoch would begin alike. docs/design/plan.md has the proofs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from draftsmith.errors import PlanError
from draftsmith.plan.keyed import IntArray, below, draws, key_of, permutation
from draftsmith.plan.orders.base import BucketArray, Order, bucket_dtype, checked_counts, min_longest_run
from draftsmith.plan.orders.compiled import compiled_extend
from draftsmith.plan.orders.kernel import State, Tables, extend_order

_FIRST_CHUNK, _CHUNK = 64, 4096
_WEIGHT_SCALE = 1 << 30
_NUM_PHASES = 8  # starts to try before the line itself, for every bound
_MAX_STALLS = 16  # dead ends in a row that reach no further; each undoes twice as much as the one before


@dataclass(frozen=True)
class _Found:
    """sequence: None if the search was given up."""

    sequence: BucketArray | None
    num_dead_ends: int


def quota(counts: Sequence[int], key: int) -> Order:
    """Drift below 2 batches from the proportional line, below 1 from a line with a random start; runs are minimal."""
    return quota_order(counts, key, phase=True)


def quota_nominal(counts: Sequence[int], key: int) -> Order:
    """Drift below 1 batch from the proportional line itself; but then every epoch begins much alike."""
    return quota_order(counts, key, phase=False)


def quota_order(
    counts: Sequence[int],
    key: int,
    *,
    phase: bool,
    bounds: Sequence[Fraction | None] | None = None,
    compiled: bool | None = None,
) -> Order:
    """Find an order within the first of `bounds` (in batches; None: no bound) that allows one.

    compiled: use the compiled loop; None decides by size. The order does not depend on it.
    The last resort, no bound, always succeeds: then only the run limit acts, and its guard is exact. PlanError if
    bounds leave that out and none of them succeeds.
    """
    numbers = checked_counts(counts)
    total = sum(numbers)
    ladder = bounds or (Fraction(total - 1, total), Fraction(3, 2), 2, 3, 5, 8, None)
    limits = _run_limits(numbers)
    weights = draw_weights(numbers)
    attempts = 0
    for rung, bound in enumerate(ladder):
        units = total * (total + 1) if bound is None else int(bound * total)
        for trial in range(_NUM_PHASES if phase else 0, -1, -1):
            is_random = trial > 0
            start = (
                _random_phase(numbers, key_of(key, "phase", rung, trial), units) if is_random else [0] * len(numbers)
            )
            tables = Tables(numbers, weights, limits, start, units, 2 * len(numbers) + 2)
            found = _search(tables, key_of(key, "draws", rung, trial), compiled)
            attempts += found.num_dead_ends
            if found.sequence is not None:
                return Order(found.sequence, _certificate(bound, limits, attempts + 1, is_random))
    raise PlanError(
        f"no order of {numbers} was found within {', '.join(map(str, ladder))} batches; allow a wider bound, or None"
    )


def draw_weights(counts: Sequence[int]) -> list[int]:
    """Integer weights whose no-repeat draw has the rates of the counts; scale 2**30.

    Drawing by w while excluding the last bucket visits bucket i at a rate proportional to w_i (1 - w_i), so weights
    proportional to the counts would starve the largest bucket until its deadline. Solved by damped fixed point, in
    integers. Near one half (or with two buckets) the order is all but forced, and the plain counts are right.
    """
    total = sum(counts)
    unit = 1 << 48
    weights = [count * unit // total for count in counts]
    if 1000 * max(counts) < 495 * total and sum(count > 0 for count in counts) > 2:
        for _ in range(4000):  # dozens suffice, unless a bucket is close to one half
            raw = [count * unit * unit // (unit - weight) for count, weight in zip(counts, weights, strict=True)]
            norm = sum(raw)
            target = [part * unit // norm for part in raw]
            moved = max(abs(goal - weight) for weight, goal in zip(weights, target, strict=True))
            weights = [(weight + goal) // 2 for weight, goal in zip(weights, target, strict=True)]
            if moved < unit >> 36:
                break
    scale = unit // _WEIGHT_SCALE
    return [max(1, weight // scale) if count else 0 for count, weight in zip(counts, weights, strict=True)]


def _run_limits(counts: list[int]) -> list[int]:
    limit = min_longest_run(counts)
    largest = max(counts)
    return [limit if count == largest else 1 for count in counts]


def _random_phase(counts: list[int], key: int, bound: int) -> list[int]:
    """Lags of a uniformly random moment of an endless quota sequence, in units of 1/N; sum 0, each below N.

    Drawn again if the deadlines from there on, or the releases towards the end, ask for more slots than there are
    (Hall's condition on prefixes and suffixes; fails in less than one draw of a hundred).
    """
    total = sum(counts)
    for attempt in range(64):
        base = key_of(key, attempt)
        moment = below(base, total)
        lags, level = [0] * len(counts), below(base, total, counter=1)
        for bucket in permutation(key_of(base, "walk"), len(counts)).tolist():
            fraction = moment * counts[bucket] % total
            rounded_up = (level + fraction) // total - level // total
            lags[bucket] = fraction - rounded_up * total
            level += fraction
        if _phase_fits(counts, lags, bound):
            return lags
    return [0] * len(counts)


def _phase_fits(counts: list[int], lags: list[int], bound: int) -> bool:
    total = sum(counts)
    slots = np.arange(total + 1)
    due = np.cumsum(_deadline_histogram(counts, lags, bound))
    late = np.cumsum(_deadline_histogram(counts, [-lag for lag in lags], bound))  # the same, backwards in time
    return bool((due <= slots).all() and (late <= slots).all())


def _deadline_histogram(counts: Sequence[int], lags: Sequence[int], bound: int) -> IntArray:
    """How many copies have their deadline at slot T. Shape [N + 1]."""
    total = sum(counts)
    histogram = np.zeros(total + 1, dtype=np.int64)
    for count, lag in zip(counts, lags, strict=True):
        if count:
            copies = np.arange(count, dtype=np.int64) * total
            deadlines = np.minimum((bound - lag + copies) // count + 1, total)
            histogram += np.bincount(deadlines, minlength=total + 1)
    return histogram


def _search(tables: Tables, key: int, compiled: bool | None) -> _Found:
    """Draw step by step; at a dead end undo 2, 4, 8, ... steps and draw them anew with the next attempt's numbers."""
    total = sum(tables.counts)
    run_loop, as_sequence = (extend_order, list) if (kernel := compiled_extend(total, compiled)) is None else kernel
    tables = Tables(
        as_sequence(tables.counts),
        as_sequence(tables.weights),
        as_sequence(tables.run_limits),
        as_sequence(tables.phase),
        tables.bound,
        tables.horizon,
    )
    first_tables = tables._replace(weights=tables.counts)
    state = _fresh_state(tables, as_sequence)
    order = as_sequence(np.zeros(total, dtype=np.int64))
    step, farthest, stalls, dead_ends, undone, chunk = 0, 0, 0, 0, 0, _FIRST_CHUNK
    while step < total:
        stop = min(total, step + chunk) if step else 1
        drawn = as_sequence(draws(key_of(key, dead_ends), stop - step, start=step).tolist())
        # The first draw excludes no last bucket, so the counts themselves are its weights.
        reached = run_loop(order, step, stop, drawn, tables if step else first_tables, state)
        if reached == stop:
            step, chunk = stop, min(2 * chunk, _CHUNK)
            continue
        dead_ends += 1
        stalls = 1 if reached > farthest else stalls + 1
        farthest = max(farthest, reached)
        step = max(0, reached - (1 << stalls))
        undone, chunk = undone + reached - step, _FIRST_CHUNK
        if stalls > _MAX_STALLS or undone > total + 1024:
            return _Found(None, dead_ends)
        _undo(order, reached, step, tables, state)
    return _Found(np.asarray(order).astype(bucket_dtype(len(tables.counts))), dead_ends)


def _fresh_state(tables: Tables, as_sequence: Any) -> State:
    total = sum(tables.counts)
    histogram = _deadline_histogram(tables.counts, tables.phase, tables.bound)
    zeros = [0] * len(tables.counts)
    state = State(
        remaining=as_sequence(list(tables.counts)),
        release=as_sequence(zeros),
        deadline=as_sequence(zeros),
        pending=as_sequence(histogram.tolist()),
        tail=as_sequence([-1, 0]),
        scratch=as_sequence(zeros),
    )
    for bucket in range(len(tables.counts)):
        _set_window(bucket, total, tables, state)
    return state


def _set_window(bucket: int, total: int, tables: Tables, state: State) -> None:
    count = int(tables.counts[bucket])
    if state.remaining[bucket] == 0:
        state.release[bucket] = state.deadline[bucket] = total + 1
        return
    copies = (count - int(state.remaining[bucket])) * total
    lag = int(tables.phase[bucket])
    state.release[bucket] = max(1, -((tables.bound + lag - copies - total) // count))
    state.deadline[bucket] = min(total, (tables.bound - lag + copies) // count + 1)


def _undo(order: Any, reached: int, step: int, tables: Tables, state: State) -> None:
    """Take back the picks of steps step..reached - 1."""
    total = sum(tables.counts)
    for index in range(reached - 1, step - 1, -1):
        bucket = int(order[index])
        state.remaining[bucket] += 1
        _set_window(bucket, total, tables, state)
        state.pending[state.deadline[bucket]] += 1
    last = int(order[step - 1]) if step else -1
    run = 0
    while step - run > 0 and int(order[step - run - 1]) == last:
        run += 1
    state.tail[0], state.tail[1] = last, run


def _certificate(bound: Fraction | int | None, limits: list[int], attempts: int, phase: bool) -> dict[str, Any]:
    return {
        "bound": None if bound is None else float(bound),
        "bound_is_from": "a proportional line with a random start" if phase else "the proportional line",
        "longest_run": max(limits),
        "attempts": attempts,
    }
