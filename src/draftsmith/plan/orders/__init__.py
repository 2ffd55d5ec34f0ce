"""Order policies: counts per bucket and a key -> the bucket of every batch. One registry, one interface.

A policy is a pure function `(counts, key) -> Order`; the same key gives the same order on every platform.
"""

from draftsmith.errors import PlanError
from draftsmith.plan.orders import plain, quota, stride
from draftsmith.plan.orders.base import Order, OrderPolicy, min_adjacent_repeats, min_longest_run

__all__ = ["POLICIES", "Order", "OrderPolicy", "min_adjacent_repeats", "min_longest_run", "policy_named"]

POLICIES: dict[str, OrderPolicy] = {
    "quota": quota.quota,
    "quota-nominal": quota.quota_nominal,
    "stride": stride.stride,
    "shuffle": plain.shuffle,
    "weighted": plain.weighted,
    "diversity-first": plain.diversity_first,
    "soft-anti-repeat": plain.soft_anti_repeat,
    "sequential": plain.sequential,
}


def policy_named(name: str) -> OrderPolicy:
    """The policy, or a PlanError that lists the known ones."""
    if name not in POLICIES:
        raise PlanError(f"batching.order is {name!r}; known orders: {', '.join(POLICIES)}")
    return POLICIES[name]
