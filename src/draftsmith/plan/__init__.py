"""Lengths -> buckets -> batches -> order: the plan of an epoch. Needs numpy only, and works without the other rooms."""

from draftsmith.plan.epoch import EpochPlan, PlannedBatch, build_plan
from draftsmith.plan.settings import PlanSettings

__all__ = ["EpochPlan", "PlanSettings", "PlannedBatch", "build_plan"]
