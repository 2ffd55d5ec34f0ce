"""The alternative to buckets: several samples in one row, by best-fit decreasing, within a shuffled window.

A packed row wastes almost nothing, but attention has to respect document ids and positions restart within the row.
A larger window packs tighter; a smaller one keeps who meets whom random.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from draftsmith.plan.batches import BatchTable, fit_lengths
from draftsmith.plan.keyed import IntArray, key_of, permutation
from draftsmith.plan.settings import PlanSettings


@dataclass(frozen=True)
class PackedLayout:
    """Where the tokens of a packed batch lie, B rows of S tokens.

    document_ids: int32 [B, S], 0, 1, ... within a row in order of its documents, -1 for padding. position_ids: int32
    [B, S], restarting at 0 with every document. documents: (sample, row, start, length) of each, in tokens.
    """

    document_ids: npt.NDArray[np.int32]
    position_ids: npt.NDArray[np.int32]
    documents: tuple[tuple[int, int, int, int], ...]


def packed_layout(samples: IntArray, rows: IntArray, lengths: IntArray, padded_length: int) -> PackedLayout:
    """Lay out a batch: samples, rows: int64 [n] as planned; lengths: int64 [n], tokens of each, already truncated."""
    num_rows = int(rows.max()) + 1
    document_ids = np.full((num_rows, padded_length), -1, dtype=np.int32)
    position_ids = np.zeros((num_rows, padded_length), dtype=np.int32)
    filled, seen, documents = [0] * num_rows, [0] * num_rows, []
    for sample, row, length in zip(samples.tolist(), rows.tolist(), lengths.tolist(), strict=True):
        start = filled[row]
        document_ids[row, start : start + length] = seen[row]
        position_ids[row, start : start + length] = np.arange(length)
        documents.append((sample, row, start, length))
        filled[row] += length
        seen[row] += 1
    return PackedLayout(document_ids, position_ids, tuple(documents))


def pack_batches(lengths: IntArray, settings: PlanSettings, *, key: int) -> BatchTable:
    """Pack all samples into rows of `row_limit` tokens and the rows into batches; one bucket, every sample once."""
    kept, fitted, num_truncated = fit_lengths(lengths, settings)
    shuffled = permutation(key_of(key, "samples"), len(kept))
    packed_rows: list[list[int]] = []
    for start in range(0, len(shuffled), settings.pack_window):
        window = shuffled[start : start + settings.pack_window]
        rows = best_fit_decreasing(fitted[window].tolist(), settings.row_limit)
        packed_rows += [window[row].tolist() for row in rows]
    per_batch = settings.max_tokens // settings.row_limit
    if settings.max_rows is not None:
        per_batch = min(per_batch, settings.max_rows)
    row_order = permutation(key_of(key, "rows"), len(packed_rows)).tolist()
    return _table(packed_rows, row_order, per_batch, kept, fitted, num_truncated, len(lengths))


def best_fit_decreasing(lengths: list[int], capacity: int) -> list[list[int]]:
    """Indices of `lengths` in rows of at most `capacity`: longest first, each into the fullest row that has room."""
    rows: list[list[int]] = []
    room: list[tuple[int, int]] = []  # (tokens left, row), sorted
    for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        length = lengths[index]
        at = bisect_left(room, (length, -1))
        if at == len(room):
            rows.append([index])
            left, row = capacity - length, len(rows) - 1
        else:
            left, row = room.pop(at)
            rows[row].append(index)
            left -= length
        if left:
            insort(room, (left, row))
    return rows


def _table(
    packed_rows: list[list[int]],
    row_order: list[int],
    per_batch: int,
    kept: IntArray,
    fitted: IntArray,
    num_truncated: int,
    num_samples: int,
) -> BatchTable:
    members: list[int] = []
    rows: list[int] = []
    offsets, padded = [0], []
    for start in range(0, len(row_order), per_batch):
        widest = 0
        for row, packed in enumerate(row_order[start : start + per_batch]):
            members += packed_rows[packed]
            rows += [row] * len(packed_rows[packed])
            widest = max(widest, int(fitted[packed_rows[packed]].sum()))
        offsets.append(len(members))
        padded.append(widest)
    return BatchTable(
        samples=kept[members],
        rows=np.array(rows, dtype=np.int64),
        offsets=np.array(offsets, dtype=np.int64),
        padded=np.array(padded, dtype=np.int64),
        buckets=np.zeros(len(padded), dtype=np.int64),
        edges=(max(padded),),
        num_dropped=num_samples - len(kept),
        num_truncated=num_truncated,
    )
