"""Samples of a bucket -> batches within the token budget."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from draftsmith.errors import PlanError
from draftsmith.plan.buckets import assign_buckets, choose_edges, rows_per_batch
from draftsmith.plan.keyed import IntArray, key_of, permutation
from draftsmith.plan.settings import PlanSettings


@dataclass(frozen=True)
class BatchTable:
    """All batches of an epoch, bucket after bucket, not yet in order.

    samples: int64 [n], the samples of batch b are samples[offsets[b] : offsets[b + 1]]; rows: int64 [n], the row of
    each (several samples share a row only when packed); offsets: int64 [N + 1]; padded: int64 [N], tokens of a row;
    buckets: int64 [N], non-decreasing; edges: inclusive bucket tops.
    """

    samples: IntArray
    rows: IntArray
    offsets: IntArray
    padded: IntArray
    buckets: IntArray
    edges: tuple[int, ...]
    num_dropped: int
    num_truncated: int


MAX_LENGTH = 2**31 - 1


def checked_lengths(lengths: object) -> IntArray:
    """Lengths as int64 [n]; raises PlanError when there are none, or one of them is not a positive whole number."""
    array = np.asarray(lengths)
    if array.ndim != 1:
        raise PlanError(f"lengths have shape {array.shape}; a flat list of token counts is needed")
    if array.size == 0:
        raise PlanError("there are no samples to plan: the store or the lengths file is empty")
    if array.dtype.kind not in "iu":
        raise PlanError(f"lengths are {array.dtype}; token counts must be whole numbers")
    if array.max() > MAX_LENGTH:
        raise PlanError(
            f"sample {int(np.argmax(array))} has {array.max()} tokens; at most {MAX_LENGTH:,} can be planned"
        )
    array = array.astype(np.int64)
    if array.min() < 1:
        where = int(np.argmin(array))
        raise PlanError(
            f"sample {where} has {array[where]} tokens; a sample needs at least one: drop it before planning"
        )
    return array


def fit_lengths(lengths: IntArray, settings: PlanSettings) -> tuple[IntArray, IntArray, int]:
    """Apply the overlong rule. Returns (kept sample ids, their lengths as trained, number truncated)."""
    limit = settings.row_limit
    too_long = lengths > limit
    num_long = int(too_long.sum())
    if num_long == 0:
        return np.arange(len(lengths), dtype=np.int64), lengths, 0
    if settings.overlong == "truncate":
        return np.arange(len(lengths), dtype=np.int64), np.minimum(lengths, limit), num_long
    if settings.overlong == "drop":
        kept = np.flatnonzero(~too_long)
        if len(kept) == 0:
            raise PlanError(
                f"all {num_long} samples are longer than {limit} tokens and batching.overlong is 'drop'; "
                "raise batching.max_tokens, or set overlong to 'truncate'"
            )
        return kept, lengths[kept], 0
    first = int(np.argmax(too_long))
    raise PlanError(
        f"batching.max_tokens is {settings.max_tokens} and a row holds {limit}, but sample {first} has "
        f"{lengths[first]} tokens ({num_long} samples are too long); raise it, or set batching.overlong to "
        "'truncate' or 'drop'"
    )


def cut_buckets(lengths: IntArray, settings: PlanSettings, *, key: int) -> BatchTable:
    """Cut every bucket into batches. The samples of a bucket are shuffled by `key`, so batches differ by epoch."""
    kept, fitted, num_truncated = fit_lengths(lengths, settings)
    edges = choose_edges(fitted, settings)
    buckets = assign_buckets(fitted, edges)
    shuffled = permutation(key_of(key, "samples"), len(kept))
    by_bucket = shuffled[np.argsort(buckets[shuffled], kind="stable")]
    sizes = np.bincount(buckets, minlength=len(edges))
    offsets, padded, bucket_of, start = [0], [], [], 0
    for bucket, size in enumerate(sizes.tolist()):
        members = fitted[by_bucket[start : start + size]]
        ends, tops = _cut_static(size, edges[bucket], settings)
        if settings.shapes == "dynamic":
            ends, tops = _cut_dynamic(members, settings)
        offsets += [start + end for end in ends]
        padded += tops
        bucket_of += [bucket] * len(ends)
        start += size
    ends_of = np.array(offsets, dtype=np.int64)
    return BatchTable(
        samples=kept[by_bucket],
        rows=np.arange(len(kept), dtype=np.int64) - np.repeat(ends_of[:-1], np.diff(ends_of)),
        offsets=ends_of,
        padded=np.array(padded, dtype=np.int64),
        buckets=np.array(bucket_of, dtype=np.int64),
        edges=edges,
        num_dropped=len(lengths) - len(kept),
        num_truncated=num_truncated,
    )


def _cut_static(size: int, top: int, settings: PlanSettings) -> tuple[list[int], list[int]]:
    rows = rows_per_batch(top, settings)
    ends = [min(end, size) for end in range(rows, size + rows, rows)]
    return ends, [top] * len(ends)


def _cut_dynamic(members: IntArray, settings: PlanSettings) -> tuple[list[int], list[int]]:
    """Add rows while rows x longest row stays within the budget. O(samples), plain integers."""
    ends, padded, rows, longest = [], [], 0, 0
    budget, most_rows = settings.max_tokens, settings.max_rows or len(members)
    for index, length in enumerate(members.tolist()):
        wider = length if length > longest else longest
        if rows == most_rows or (rows + 1) * wider > budget:
            ends.append(index)
            padded.append(longest)
            rows, wider = 0, length
        rows += 1
        longest = wider
    if rows:
        ends.append(len(members))
        padded.append(longest)
    return ends, padded
