"""Other loaders on the same lengths: order, padding and time, in one table.

Every batch is named after the bucket of its longest sample under the same eight edges, and the order of those names is
audited. A loader runs if its package is installed: transformers (group_by_length), lhotse (DynamicBucketingSampler),
mosaicml-streaming (buckets as streams; per_stream gives batches of one bucket, stratified mixes all in each batch).

    python benchmarks/loaders.py --lengths lengths.txt --json loaders.json
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from draftsmith.plan import PlanSettings, audit_order, build_plan
from draftsmith.plan.buckets import assign_buckets, choose_edges
from draftsmith.plan.report import read_lengths
from draftsmith.plan.tables import text_table
from draftsmith.plan.verdict import judge

BUDGET = 8192
Batches = Sequence[Sequence[int]]


def planned(lengths: np.ndarray, rows: int) -> Batches:
    plan = build_plan(lengths, PlanSettings(max_tokens=BUDGET), seed=0)
    return [batch.samples.tolist() for batch in plan]


def planned_packed(lengths: np.ndarray, rows: int) -> Batches:
    plan = build_plan(lengths, PlanSettings(max_tokens=BUDGET, batching="packed"), seed=0)
    return [batch.samples.tolist() for batch in plan]


def grouped(lengths: np.ndarray, rows: int) -> Batches:
    import torch
    from transformers.trainer_pt_utils import LengthGroupedSampler

    generator = torch.Generator().manual_seed(0)
    order = list(LengthGroupedSampler(rows, lengths=lengths.tolist(), generator=generator))
    return [order[start : start + rows] for start in range(0, len(order), rows)]


def dynamic_bucketing(lengths: np.ndarray, rows: int) -> Batches:
    from lhotse import CutSet
    from lhotse.dataset import DynamicBucketingSampler
    from lhotse.testing.dummies import dummy_cut

    draw = np.random.default_rng(0)
    cuts = CutSet.from_cuts(
        dummy_cut(unique_id=int(sample), start=0.0, duration=float(lengths[sample]))
        for sample in draw.permutation(len(lengths))
    )
    sampler = DynamicBucketingSampler(
        cuts, max_duration=float(BUDGET), num_buckets=8, shuffle=True, seed=0, world_size=1, rank=0
    )
    return [[int(cut.id.rsplit("-", 1)[-1]) for cut in batch] for batch in sampler]


def streams(lengths: np.ndarray, rows: int, method: str) -> Batches:
    """Buckets as streams of a StreamingDataset, every sample a row of its own shard; fixed rows, as that loader has."""
    from streaming import MDSWriter, Stream, StreamingDataset
    from streaming.base.batching import generate_work
    from streaming.base.util import clean_stale_shared_memory
    from streaming.base.world import World

    clean_stale_shared_memory()
    buckets = assign_buckets(lengths, choose_edges(lengths, PlanSettings(max_tokens=BUDGET)))
    with tempfile.TemporaryDirectory() as folder:
        parts, members = [], []
        for bucket in range(int(buckets.max()) + 1):
            place = f"{folder}/{bucket}"
            ids = np.flatnonzero(buckets == bucket)
            with MDSWriter(out=place, columns={"sample": "int"}) as writer:
                for sample in ids.tolist():
                    writer.write({"sample": sample})
            parts.append(Stream(local=place))
            members.append(ids)
        dataset = StreamingDataset(
            streams=parts,
            batch_size=rows,
            shuffle=True,
            shuffle_seed=0,
            batching_method=method,
            num_canonical_nodes=1,
            shuffle_block_size=1 << 18,
        )
        world = World.detect()
        work = generate_work(method, dataset, world, 0, 0)
    ids = np.concatenate(members)
    batches = work.reshape(-1, rows)
    return [ids[batch[batch >= 0]].tolist() for batch in batches if (batch >= 0).any()]


def per_stream(lengths: np.ndarray, rows: int) -> Batches:
    return streams(lengths, rows, "per_stream")


def stratified(lengths: np.ndarray, rows: int) -> Batches:
    return streams(lengths, rows, "stratified")


LOADERS: dict[str, Callable[[np.ndarray, int], Batches]] = {
    "draftsmith quota": planned,
    "draftsmith packed": planned_packed,
    "Trainer group_by_length": grouped,
    "lhotse dynamic bucketing": dynamic_bucketing,
    "streaming per_stream": per_stream,
    "streaming stratified": stratified,
}


def measure(name: str, batches: Batches, lengths: np.ndarray, edges: tuple[int, ...], seconds: float) -> dict[str, Any]:
    longest = np.array([int(lengths[list(batch)].max()) for batch in batches])
    used = np.array([int(lengths[list(batch)].sum()) for batch in batches])
    padded = longest * np.array([len(batch) for batch in batches])
    if name == "draftsmith packed":
        padded = used  # rows hold several samples
    order = assign_buckets(longest, edges).astype(np.uint8)
    counts = np.bincount(order, minlength=len(edges)).tolist()
    audit = audit_order(order, counts)
    seen = np.bincount(np.concatenate([np.asarray(batch) for batch in batches]), minlength=len(lengths))
    return {
        "batches": len(batches),
        "max_drift": audit.max_drift,
        "longest_run": audit.longest_run,
        "adjacent_repeats": audit.adjacent_repeats,
        "tail": audit.tail,
        "first_bucket_out": min(at for at in audit.exhaustion if at),
        "spectral_peak": audit.spectral_peak,
        "padding": 1 - int(used.sum()) / int(padded.sum()),
        "largest_batch_tokens": int(padded.max()),
        "samples_missing": int((seen == 0).sum()),
        "seconds": seconds,
        "verdict": judge(name, audit, counts).text,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=Path, required=True)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    lengths = np.minimum(read_lengths(options.lengths), BUDGET)
    edges = choose_edges(lengths, PlanSettings(max_tokens=BUDGET))
    rows = max(1, round(BUDGET / float(lengths.mean())))
    figures = {}
    for name, loader in LOADERS.items():
        try:
            loader(lengths, rows)  # imports and compiles
            started = time.perf_counter()
            batches = loader(lengths, rows)
        except (ImportError, ValueError) as error:
            print(f"{name}: left out, {error}")
            continue
        figures[name] = measure(name, batches, lengths, edges, time.perf_counter() - started)
    columns = [name for name in next(iter(figures.values())) if name != "verdict"]
    table = [[name, *(f"{row[column]:,.4g}" for column in columns)] for name, row in figures.items()]
    print(f"{len(lengths):,} samples, budget {BUDGET} tokens; loaders with fixed rows have {rows}")
    print(text_table(["loader", *(name.replace("_", " ") for name in columns)], table), end="\n\n")
    print("\n".join(row["verdict"] for row in figures.values()))
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
