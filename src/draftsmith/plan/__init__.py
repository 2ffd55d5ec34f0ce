"""Lengths -> buckets -> batches -> order -> ranks: the plan of an epoch. Needs numpy only, works without other rooms.

`BucketBatchSampler` needs torch and is imported when it is first asked for.
"""

from typing import TYPE_CHECKING, Any

from draftsmith.plan.audit import OrderAudit, audit_order, audit_ranks
from draftsmith.plan.deal import Deal, deal_epoch, deal_order
from draftsmith.plan.epoch import EpochPlan, PlannedBatch, build_plan
from draftsmith.plan.orders import POLICIES
from draftsmith.plan.packing import PackedLayout, packed_layout
from draftsmith.plan.padding import BucketAudit, audit_buckets
from draftsmith.plan.plots import write_plot
from draftsmith.plan.position import Position, position_of, resume_plan
from draftsmith.plan.report import PlanReport, parse_counts, plan_report, read_lengths
from draftsmith.plan.settings import PlanSettings

if TYPE_CHECKING:
    from draftsmith.plan.sampler import BucketBatchSampler, PlannedDataLoader

__all__ = [
    "POLICIES",
    "BucketAudit",
    "BucketBatchSampler",
    "Deal",
    "EpochPlan",
    "OrderAudit",
    "PackedLayout",
    "PlanReport",
    "PlanSettings",
    "PlannedBatch",
    "PlannedDataLoader",
    "Position",
    "audit_buckets",
    "audit_order",
    "audit_ranks",
    "build_plan",
    "deal_epoch",
    "deal_order",
    "packed_layout",
    "parse_counts",
    "plan_report",
    "position_of",
    "read_lengths",
    "resume_plan",
    "write_plot",
]


def __getattr__(name: str) -> Any:
    if name in {"BucketBatchSampler", "PlannedDataLoader"}:
        from draftsmith.plan import sampler

        return getattr(sampler, name)
    raise AttributeError(f"module {__name__} has no attribute {name}")
