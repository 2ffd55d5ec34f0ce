"""The inner loop of the quota order: one source for Python lists and, compiled, for numpy arrays.

Every number is an integer below 2**63, so lists of Python ints and int64 arrays give the same order bit for bit.
The loop knows jobs, not lags: copy c of bucket i may be placed in the slots release..deadline, outside of which the lag
t * n_i - x_i * N (in units of 1/N batch) would leave +-bound. This is the same rule, and costs one division per step.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class Tables(NamedTuple):
    """What stays the same: sequences of length K, and two numbers. phase and bound are in units of 1/N batch."""

    counts: Any
    weights: Any
    run_limits: Any
    phase: Any
    bound: int
    horizon: int


class State(NamedTuple):
    """What a step changes, in place.

    remaining, release, deadline: [K], the next copy of each bucket; an exhausted bucket has release N + 1.
    pending: [N + 1], how many copies not yet placed have slot T as their deadline. tail: [last bucket, its run].
    scratch: [K].
    """

    remaining: Any
    release: Any
    deadline: Any
    pending: Any
    tail: Any
    scratch: Any


def extend_order(order: Any, start: int, stop: int, draws: Any, tables: Tables, state: State) -> int:
    """Fill order[start:stop]; draws[0] belongs to step start. Returns stop, or the step at which no bucket may follow.

    Each step: (1) find the first horizon that the deadlines fill completely; then only buckets due within it may come
    (docs/design/plan.md proves that nothing else can run out); (2) keep what is released and allowed by the run
    limits; (3) draw in proportion to the weights.
    """
    counts, weights, limits, phase, bound, horizon = tables
    remaining, release, deadline, pending, tail, scratch = state
    num_buckets, total = len(counts), len(pending) - 1
    last, run = tail[0], tail[1]
    check_runs_at = start
    step = start
    while step < stop:
        slots = total - step
        due, demand = total, 0
        for ahead in range(1, min(horizon, slots) + 1):
            demand += pending[step + ahead]
            if demand >= ahead:
                due = step + ahead
                break
        if demand > due - step:
            break
        forced = -1
        if step >= check_runs_at:
            # A bucket whose remaining copies need every gap between the others must come now. Its slack falls by at
            # most its run limit a step, so the next time that can happen is known.
            nearest = total
            for bucket in range(num_buckets):
                slack = limits[bucket] * slots - (limits[bucket] + 1) * remaining[bucket]
                if slack < 0:
                    run_after = run + 1 if bucket == last else 1
                    if forced >= 0 or run_after > limits[bucket] or slack < run_after - limits[bucket] - 1:
                        forced = num_buckets
                        break
                    forced = bucket
                nearest = min(nearest, slack // limits[bucket])
            if forced == num_buckets:
                break
            check_runs_at = step + max(nearest, 0) + 1
        mass = 0
        for bucket in range(num_buckets):
            weight = 0
            in_window = release[bucket] <= step + 1 and deadline[bucket] <= due
            if in_window and (forced < 0 or bucket == forced) and (bucket != last or run < limits[bucket]):
                weight = weights[bucket]
            scratch[bucket] = weight
            mass += weight
        if mass == 0:
            break
        ticket = (draws[step - start] * mass) >> 32
        pick = 0
        while ticket >= scratch[pick]:
            ticket -= scratch[pick]
            pick += 1
        run = run + 1 if pick == last else 1
        last = pick
        order[step] = pick
        pending[deadline[pick]] -= 1
        remaining[pick] -= 1
        if remaining[pick] > 0:
            copies = (counts[pick] - remaining[pick]) * total  # placed so far; the next copy has one more
            release[pick] = max(1, -((bound + phase[pick] - copies - total) // counts[pick]))
            deadline[pick] = min(total, (bound - phase[pick] + copies) // counts[pick] + 1)
        else:
            release[pick] = total + 1
            deadline[pick] = total + 1
        step += 1
    tail[0], tail[1] = last, run
    return step
