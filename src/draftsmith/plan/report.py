"""What `draftsmith plan` prints: the plan, its orders side by side, the ranks, and a verdict in plain words."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from draftsmith.errors import PlanError
from draftsmith.plan.audit import OrderAudit, RankAudit, audit_order, audit_ranks
from draftsmith.plan.deal import deal_order
from draftsmith.plan.epoch import EpochPlan, build_plan
from draftsmith.plan.keyed import IntArray, key_of
from draftsmith.plan.orders import policy_named
from draftsmith.plan.orders.base import BucketArray, Order, checked_counts
from draftsmith.plan.padding import BucketAudit, audit_buckets
from draftsmith.plan.settings import PlanSettings
from draftsmith.plan.tables import bucket_table, order_table, rank_table
from draftsmith.plan.verdict import Verdict, judge


@dataclass(frozen=True)
class PolicyReport:
    """One order, measured. seconds: wall time of ordering alone."""

    policy: str
    sequence: BucketArray
    audit: OrderAudit
    certificate: dict[str, Any]
    seconds: float
    verdict: Verdict


@dataclass(frozen=True)
class PlanReport:
    """text: for a person. record: for `--json`. policies: for plots."""

    text: str
    record: dict[str, Any]
    counts: tuple[int, ...]
    policies: tuple[PolicyReport, ...]


def plan_report(
    *,
    lengths: object = None,
    counts: Sequence[int] | None = None,
    settings: PlanSettings | None = None,
    policies: Sequence[str] = (),
    world_size: int = 1,
    grad_accum: int = 1,
    deal: str = "coloring",
    tail: str = "drop",
    seed: int = 0,
    epoch: int = 0,
) -> PlanReport:
    """Plan an epoch and report on it. Give lengths (token counts, [n]) or counts (batches per bucket), not both.

    policies: names to compare, by default the settings' own order; the ranks are dealt from the first.
    Raises PlanError for whatever cannot be planned.
    """
    settings = settings or PlanSettings()
    if (lengths is None) == (counts is None):
        raise PlanError("give either the lengths of samples or the counts of batches, one of the two")
    plan = build_plan(lengths, settings, seed=seed, epoch=epoch) if counts is None else None
    numbers = checked_counts(counts if plan is None else plan.counts)  # type: ignore[arg-type]
    windows = [size for size in (8, 32, world_size, grad_accum, world_size * grad_accum) if size > 1]
    reports = tuple(
        _report_policy(name, numbers, windows, seed, epoch) for name in dict.fromkeys(policies or [settings.order])
    )
    dealt = deal_order(reports[0].sequence, world_size, grad_accum=grad_accum, method=deal, tail=tail)
    ranks = audit_ranks(reports[0].sequence, numbers, dealt)
    left = _leftover(dealt.num_left_out, dealt.num_repeated, world_size * grad_accum)
    buckets = [] if plan is None else audit_buckets(plan, lengths)
    text = _text(plan, numbers, buckets, reports, ranks, left, (seed, epoch))
    record = {
        "counts": numbers,
        "policies": {report.policy: _policy_record(report) for report in reports},
        "ranks": [asdict(rank) for rank in ranks],
    }
    return PlanReport(text, record, tuple(numbers), reports)


def read_lengths(path: Path) -> IntArray:
    """Token counts from a text file, one whole number a line. Raises PlanError that names the line."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise PlanError(f"lengths file {path} cannot be read: {error}") from None
    numbers = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            numbers.append(int(line))
        except ValueError:
            raise PlanError(f"{path}, line {number}: {line.strip()[:40]!r} is not a whole number of tokens") from None
    too_long = [line for line, number in enumerate(numbers, start=1) if abs(number) >= 2**63]
    if too_long:
        raise PlanError(
            f"{path}: the number of tokens of sample {too_long[0]} is absurd; expected a token count a line"
        )
    return np.array(numbers, dtype=np.int64)


def parse_counts(text: str) -> list[int]:
    """Batches per bucket from "2120,4017,...". Raises PlanError."""
    try:
        return checked_counts([int(part) for part in text.split(",")])
    except ValueError:
        raise PlanError(f"counts {text!r} do not read as whole numbers between commas, as in 2120,4017,19581") from None


def _report_policy(name: str, counts: list[int], windows: list[int], seed: int, epoch: int) -> PolicyReport:
    policy = policy_named(name)
    started = time.perf_counter()
    order: Order = policy(counts, key_of("order", seed, epoch))
    seconds = time.perf_counter() - started
    previous = policy(counts, key_of("order", seed, epoch - 1 if epoch else 1)).sequence
    audit = audit_order(order.sequence, counts, windows=windows, previous=previous)
    return PolicyReport(name, order.sequence, audit, order.certificate, seconds, judge(name, audit, counts))


def _policy_record(report: PolicyReport) -> dict[str, Any]:
    audit = report.audit
    return {
        "max_drift": audit.max_drift,
        "longest_run": audit.longest_run,
        "min_longest_run": audit.min_longest_run,
        "adjacent_repeats": audit.adjacent_repeats,
        "min_adjacent_repeats": audit.min_adjacent_repeats,
        "tail": audit.tail,
        "exhaustion": list(audit.exhaustion),
        "early_rate": list(audit.early_rate),
        "mean_run": list(audit.mean_run),
        "windows": {str(size): deviation for size, deviation in audit.windows.items()},
        "seconds": report.seconds,
        "order_sha256": audit.order_sha256,
        "certificate": report.certificate,
    }


def _leftover(num_left_out: int, num_repeated: int, group: int) -> str:
    if num_left_out:
        return f"The last {num_left_out} batches do not fill a group of {group} and are left out of this epoch."
    if num_repeated:
        return f"The last group of {group} is completed with {num_repeated} batches from early in the epoch."
    return ""


def _text(
    plan: EpochPlan | None,
    counts: list[int],
    buckets: list[BucketAudit],
    reports: tuple[PolicyReport, ...],
    ranks: list[RankAudit],
    left: str,
    key: tuple[int, int],
) -> str:
    seed, epoch = key
    parts = [f"{sum(counts):,} batches in {len(counts)} buckets, seed {seed}, epoch {epoch}"]
    if plan is not None:
        over = []
        if plan.num_truncated:
            over.append(f"{plan.num_truncated:,} samples truncated to {plan.settings.row_limit} tokens")
        if plan.num_dropped:
            over.append(f"{plan.num_dropped:,} samples longer than {plan.settings.row_limit} tokens dropped")
        parts[0] += "".join(f"; {part}" for part in over) + f"; plan {plan.sha256[:12]}"
        parts.append(bucket_table(buckets))
    else:
        parts.append(f"counts {', '.join(f'{count:,}' for count in counts)}")
    parts.append(order_table([(report.policy, report.audit, report.seconds) for report in reports]))
    for report in reports:
        if report.certificate:
            parts.append(_certificate_line(report))
    if len(ranks) > 1:
        parts.append(rank_table(ranks) + (f"\n{left}" if left else ""))
    elif left:
        parts.append(left)
    parts.append("\n".join(report.verdict.text for report in reports))
    return "\n\n".join(parts)


def _certificate_line(report: PolicyReport) -> str:
    proof = report.certificate
    bound = "without a bound on drift" if proof["bound"] is None else f"within {proof['bound']:.5g} batches"
    return (
        f"certificate of {report.policy}: {bound} of {proof['bound_is_from']}, runs of at most {proof['longest_run']}, "
        f"found at attempt {proof['attempts']}"
    )
