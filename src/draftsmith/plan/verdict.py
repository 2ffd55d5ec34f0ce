"""The audit of an order in plain words: what happens, and whether to train with it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from draftsmith.plan.audit import OrderAudit

# What a fair draw does with a probability below e**-8 is no luck. Runs are long when they exceed the unavoidable ones
# many times over.
_IMPROBABLE = -8.0
_LONG_RUN, _LONG_TAIL, _TIMES_MINIMUM = 64, 16, 16


@dataclass(frozen=True)
class Verdict:
    """grade: "good" (proportional at every step), "fair" (a fair draw, uneven by luck), "bad" (not to train with)."""

    grade: str
    text: str


def judge(policy: str, audit: OrderAudit, counts: Sequence[int]) -> Verdict:
    """One paragraph about one order."""
    problems = [*_incomplete(audit), *_exhausted(audit, counts), *_tail(audit, counts), *_long_run(audit)]
    if problems:
        return Verdict("bad", f"{policy}: {'; '.join(problems)}: do not train with this order.")
    faults = _faults(audit)
    if not faults:
        return Verdict("good", f"{policy}: {_mixing(audit, counts)}; train with this order.")
    hint = "" if policy.startswith("quota") else "; quota avoids this"
    return Verdict("fair", f"{policy}: no bucket runs out, but {' and '.join(faults)}{hint}.")


def _faults(audit: OrderAudit) -> list[str]:
    faults = []
    if audit.max_drift >= 2:
        drift = _batches(audit.max_drift)
        faults.append(f"bucket {audit.drift_bucket} is {drift} batches from its share at step {audit.drift_step:,}")
    if audit.longest_run > audit.min_longest_run:
        unavoidable = "once" if audit.min_longest_run == 1 else f"{audit.min_longest_run} times"
        faults.append(f"one bucket comes up to {audit.longest_run} times in a row where {unavoidable} would do")
    return faults


def _incomplete(audit: OrderAudit) -> list[str]:
    return [] if audit.is_complete else ["some batches are missing or come twice"]


def _exhausted(audit: OrderAudit, counts: Sequence[int]) -> list[str]:
    total = sum(counts)
    early = [
        (audit.exhaustion[bucket], bucket)
        for bucket, count in enumerate(counts)
        if count and _log_chance_of_gap(total - audit.last[bucket] - 1, count, total) < _IMPROBABLE
    ]
    if not early:
        return []
    at, bucket = min(early)
    others = f", the first of {len(early)} that run out early" if len(early) > 1 else ""
    return [f"bucket {bucket} is exhausted at {at:.1%} of the epoch{others}"]


def _log_chance_of_gap(gap: int, count: int, total: int) -> float:
    """Log of the chance that `count` batches placed at random all miss the last `gap` of `total` steps."""
    return count * math.log1p(-gap / total) if 2 < gap < total else 0.0


def _tail(audit: OrderAudit, counts: Sequence[int]) -> list[str]:
    if len([count for count in counts if count]) < 2:
        return []
    bucket = max(range(len(counts)), key=lambda bucket: audit.last[bucket])
    log_chance = audit.tail * math.log(counts[bucket] / sum(counts))
    if audit.tail <= max(_LONG_TAIL, 2 * audit.min_longest_run) or log_chance > _IMPROBABLE:
        return []
    return [f"the last {audit.tail:,} batches all come from bucket {bucket}"]


def _long_run(audit: OrderAudit) -> list[str]:
    if audit.longest_run <= max(_LONG_RUN, _TIMES_MINIMUM * audit.min_longest_run):
        return []
    if audit.longest_run == audit.tail:
        return []  # said already
    return [f"{audit.longest_run:,} batches in a row come from one bucket"]


def _mixing(audit: OrderAudit, counts: Sequence[int]) -> str:
    if sum(count > 0 for count in counts) < 2:
        return "there is only one bucket, so there is nothing to mix"
    share = f"every bucket stays within {_batches(audit.max_drift)} batches of its share at every step"
    if audit.longest_run == 1:
        return f"{share} and no bucket comes twice in a row"
    return (
        f"{share}, no bucket comes more than {audit.longest_run} times in a row (the minimum possible), and "
        f"{audit.adjacent_repeats:,} batches follow their like ({audit.min_adjacent_repeats:,} at least)"
    )


def _batches(drift: float) -> str:
    return f"{drift:.2f}" if drift < 10 else f"{drift:,.0f}"
