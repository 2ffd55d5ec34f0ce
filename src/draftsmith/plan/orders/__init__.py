"""Order policies: counts per bucket and a key -> the bucket of every batch. One registry, one interface.

A policy is a pure function `(counts, key) -> Order`; the same key gives the same order on every platform.
"""

from draftsmith.errors import PlanError
from draftsmith.plan.orders.base import Order, OrderPolicy, min_adjacent_repeats, min_longest_run
from draftsmith.plan.orders.plain import diversity_first, sequential, shuffle, soft_anti_repeat, weighted
from draftsmith.plan.orders.quota import quota, quota_nominal
from draftsmith.plan.orders.stride import stride

__all__ = ["POLICIES", "Order", "OrderPolicy", "min_adjacent_repeats", "min_longest_run", "policy_named"]

POLICIES: dict[str, OrderPolicy] = {
    "quota": quota,
    "quota-nominal": quota_nominal,
    "stride": stride,
    "shuffle": shuffle,
    "weighted": weighted,
    "diversity-first": diversity_first,
    "soft-anti-repeat": soft_anti_repeat,
    "sequential": sequential,
}


def policy_named(name: str) -> OrderPolicy:
    """The policy, or a PlanError that lists the known ones."""
    if name not in POLICIES:
        raise PlanError(f"batching.order is {name!r}; known orders: {', '.join(POLICIES)}")
    return POLICIES[name]
