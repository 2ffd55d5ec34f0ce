"""What the batches of a plan waste, bucket by bucket."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from draftsmith.plan.epoch import EpochPlan


@dataclass(frozen=True)
class BucketAudit:
    """One bucket. Lengths in tokens; shares and wastes are fractions.

    pad_waste: padding over rows x padded length. slot_waste: what is not a token over batches x max_tokens, so unused
    rows count too. first, last: steps of its first and last batch.
    """

    bucket: int
    bottom: int
    top: int
    samples: int
    batches: int
    share: float
    pad_waste: float
    slot_waste: float
    first: int
    last: int


def audit_buckets(plan: EpochPlan, lengths: object) -> list[BucketAudit]:
    """Measure every bucket of a plan over the lengths it was made from, the whole plan as bucket -1 at the end."""
    fitted = np.minimum(np.asarray(lengths, dtype=np.int64), plan.settings.row_limit)
    batch_of = np.repeat(np.arange(plan.num_batches), np.diff(plan.offsets))
    tokens = np.bincount(batch_of, weights=fitted[plan.samples], minlength=plan.num_batches)
    num_rows = np.ones(plan.num_batches, dtype=np.int64)
    np.maximum.at(num_rows, batch_of, plan.rows + 1)
    slots = num_rows * plan.padded
    samples = np.diff(plan.offsets)
    audits = []
    for bucket in (*range(len(plan.edges)), -1):
        steps = np.flatnonzero(plan.order == bucket) if bucket >= 0 else np.arange(plan.num_batches)
        if len(steps) == 0:
            continue
        used = float(tokens[steps].sum())
        audits.append(
            BucketAudit(
                bucket=bucket,
                bottom=plan.edges[bucket - 1] + 1 if bucket > 0 else 1,
                top=plan.edges[bucket],
                samples=int(samples[steps].sum()),
                batches=len(steps),
                share=len(steps) / plan.num_batches,
                pad_waste=1 - used / float(slots[steps].sum()),
                slot_waste=1 - used / (len(steps) * plan.settings.max_tokens),
                first=int(steps[0]),
                last=int(steps[-1]),
            )
        )
    return audits
