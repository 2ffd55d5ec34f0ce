"""The quota order against the true optimum, found by exhaustive search on every small vector."""

from __future__ import annotations

from fractions import Fraction
from functools import cache

from plan_vectors import small_vectors

from draftsmith.plan import audit_order
from draftsmith.plan.orders.base import min_longest_run
from draftsmith.plan.orders.quota import quota_order


def smallest_drift(counts: tuple[int, ...]) -> Fraction:
    """The smallest drift of any order whose longest run is the minimum possible. Dynamic programming over (placed
    per bucket, last bucket, its run): slow, obvious."""
    total, limit = sum(counts), min_longest_run(counts)

    @cache
    def best(placed: tuple[int, ...], last: int, run: int) -> int:
        step = sum(placed)
        if step == total:
            return 0
        found = total * total
        for bucket, count in enumerate(counts):
            length = run + 1 if bucket == last else 1
            if placed[bucket] == count or length > limit:
                continue
            after = tuple(done + (index == bucket) for index, done in enumerate(placed))
            here = max(abs((step + 1) * n - done * total) for n, done in zip(counts, after, strict=True))
            if here < found:
                found = min(found, max(here, best(after, bucket, length)))
        return found

    return Fraction(best((0,) * len(counts), -1, 0), total)


def test_quota_reaches_the_optimum_of_every_vector_up_to_twelve_batches_and_four_buckets() -> None:
    vectors = [vector for vector in small_vectors(12, 4) if sum(vector) >= 2]
    assert len(vectors) > 140
    for counts in vectors:
        optimum = smallest_drift(counts)
        order = quota_order(counts, 1, phase=False, bounds=[optimum, None])
        assert order.certificate["bound"] == float(optimum), f"{counts}: no order within {optimum}"
        assert audit_order(order.sequence, counts).max_drift <= float(optimum) + 1e-12
        below = quota_order(counts, 1, phase=False, bounds=[optimum - Fraction(1, sum(counts)), None])
        assert below.certificate["bound"] is None, f"{counts}: better than the optimum"


def test_quota_stays_below_one_batch_on_every_small_vector() -> None:
    for counts in small_vectors(12, 4):
        for key in range(3):
            assert quota_order(counts, key, phase=False).certificate["bound"] < 1, counts
