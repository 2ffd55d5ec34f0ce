"""The pipeline of a real configuration: its throughput against each stage alone, and its memory against the budget.

    python benchmarks/flow_real.py configs/demo.toml --override target.cache=none --json flow.json

Throughput: stages alone have the threads that they have in the pipeline; rounds are interleaved and the best of each is
taken, because other programs may disturb any of them. Memory: fresh processes, one that makes hidden states and trains
on them in turn, and one per budget that does so through the pipeline.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from draftsmith import data
from draftsmith.config import RunConfig, load_config
from draftsmith.data import TokenStore
from draftsmith.flow import FlowStats, shares, verdict
from draftsmith.plan.tables import text_table
from draftsmith.records import BatchSpec, FeatureBatch
from draftsmith.run.opening import features_on_disk, new_drafter, open_store, planned, plans_of, set_up
from draftsmith.streams import FeatureStream, Topology, feature_stream, num_cores, topology
from draftsmith.target import FeatureCache, Target, load_target, load_tokenizer, resolve_device
from draftsmith.training import TrainState, train_step
from flow import resident, worst_share_error


@dataclass
class Bench:
    """Everything that a run opens, and the ways to go through the same batches."""

    config: RunConfig
    where: Topology
    store: TokenStore
    target: Target
    cache: FeatureCache | None
    specs: list[BatchSpec]
    state: TrainState
    stats: FlowStats | None = None

    @contextmanager
    def stream(self) -> Iterator[FeatureStream]:
        arguments = self.specs, self.config, self.store, self.target, self.cache
        with feature_stream(*arguments, where=self.where) as stream:
            yield stream

    def train(self, item: FeatureBatch) -> None:
        train_step(self.state, item, self.target, self.config, progress=0.5)

    def made(self, spec: BatchSpec) -> FeatureBatch:
        """Hidden states of a batch, here and now."""
        batch = data.collate(self.store, spec).to(self.target.device)
        hidden = self.cache.batch(spec.samples, spec.padded_length) if self.cache else None
        return FeatureBatch(batch, self.target.features(batch.input_ids) if hidden is None else hidden)

    def features_alone(self) -> None:
        with self.stream() as stream:
            for _ in stream:
                pass

    def in_turn(self) -> None:
        for spec in self.specs:
            self.train(self.made(spec))

    def pipeline(self) -> None:
        with self.stream() as stream:
            for item in stream:
                self.train(item)
                del item
            self.stats = stream.stats()


@contextmanager
def opened(config: RunConfig, num_batches: int) -> Iterator[Bench]:
    where = topology(config, device=resolve_device(config.device), num_cores=num_cores())
    tokenizer, target = load_tokenizer(config.target), load_target(config.target, device=where.drafter_device)
    with tempfile.TemporaryDirectory() as directory:
        store = open_store(config, tokenizer, Path(directory))
        cache = features_on_disk(config, store, target)
        drafter = new_drafter(config, target, tokenizer, store).to(target.device)
        state = TrainState.create(drafter, config, store.tokens_seen("train"))
        specs = list(itertools.islice(planned(config, store, plans_of(config, store), state), num_batches))
        yield Bench(config, where, store, target, cache, specs, state)


def throughput(config: RunConfig, num_batches: int, num_rounds: int) -> dict[str, Any]:
    with opened(config, num_batches) as bench:
        ready = [bench.made(spec) for spec in bench.specs]

        def training_alone() -> None:
            for item in ready:
                bench.train(item)

        share = bench.where.drafter_threads
        ways: dict[str, tuple[int, Callable[[], None]]] = {
            "features alone": (share, bench.features_alone),
            "training alone": (share, training_alone),
            "in turn, all cores": (num_cores(), bench.in_turn),
            "pipeline": (share, bench.pipeline),
        }
        training_alone()  # what the first calls pay for
        best, stats = _best_of(ways, num_rounds, bench)
        tokens = sum(spec.num_slots for spec in bench.specs)
    alone = max(best["features alone"], best["training alone"])
    return {
        "target workers": list(bench.where.target_devices),
        "threads of a target worker and of training": [bench.where.target_threads, bench.where.drafter_threads],
        "tokens": tokens,
        **{f"{name}, tokens/s": tokens / seconds for name, seconds in best.items()},
        "pipeline against its slowest stage alone": alone / best["pipeline"],
        "pipeline against in turn with all cores": best["in turn, all cores"] / best["pipeline"],
        "worst share error": worst_share_error(stats),
        "peak credited, MiB": stats.peak_bytes / 2**20,
        "shares busy/starved/blocked": shares(stats),
        "verdict": verdict(stats).text,
    }


def _best_of(
    ways: dict[str, tuple[int, Callable[[], None]]], num_rounds: int, bench: Bench
) -> tuple[dict[str, float], FlowStats]:
    """Seconds of the best round of each way, and the statistics of the best round of the pipeline."""
    rounds: dict[str, list[tuple[float, FlowStats | None]]] = {name: [] for name in ways}
    for _ in range(num_rounds):
        for name, (threads, way) in ways.items():
            torch.set_num_threads(threads)
            started = time.perf_counter()
            way()
            rounds[name].append((time.perf_counter() - started, bench.stats))
    best = {name: min(taken, key=lambda found: found[0]) for name, taken in rounds.items()}
    stats = best["pipeline"][1]
    assert stats is not None
    return {name: seconds for name, (seconds, _) in best.items()}, stats


def memory(arguments: list[str], budgets_mib: list[int]) -> dict[str, Any]:
    """Peak resident MiB of processes of their own; what the pipeline adds to doing things in turn, per budget."""
    in_turn, _ = _peak(arguments, 0)
    rows = {}
    for budget in budgets_mib:
        peak, credited = _peak(arguments, budget)
        allowed = in_turn + budget
        rows[budget] = {"credited": credited, "resident": peak, "in turn + budget": allowed, "ratio": peak / allowed}
    columns = ["budget, MiB", *next(iter(rows.values()))]
    print(f"memory; in turn, without a pipeline: {in_turn:,.0f} MiB")
    print(text_table(columns, [[str(b), *(f"{v:,.2f}" for v in row.values())] for b, row in rows.items()]), end="\n\n")
    return {"in_turn_mib": in_turn, "by_budget_mib": rows}


def _peak(arguments: list[str], budget_mib: int) -> tuple[float, float]:
    command = [sys.executable, __file__, *arguments, "--fill", str(budget_mib)]
    printed = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    resident_mib, credited_mib = json.loads(printed.splitlines()[-1])
    return resident_mib, credited_mib


def fill(config: RunConfig, num_batches: int, budget_mib: int) -> None:
    """The process that `memory` measures: prints its peak resident and credited MiB. Without a budget: in turn."""
    if budget_mib:
        flow = config.flow.model_copy(update={"budget_bytes": budget_mib * 2**20, "max_items": num_batches})
        config = config.model_copy(update={"flow": flow})
    with opened(config, num_batches) as bench:
        torch.set_num_threads(bench.where.drafter_threads)
        if budget_mib:
            bench.pipeline()
        else:
            bench.in_turn()
    print(json.dumps([resident("VmHWM"), bench.stats.peak_bytes / 2**20 if bench.stats else 0.0]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path)
    parser.add_argument("--override", nargs="*", default=[], help="settings of that configuration, a.b=c")
    parser.add_argument("--batches", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--budgets-mib", type=int, nargs="*", default=[], help="also measure memory with these")
    parser.add_argument("--fill", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    config = set_up(load_config(options.config, options.override))
    if options.fill is not None:
        fill(config, options.batches, options.fill)
        return
    figures = throughput(config, options.batches, options.rounds) if options.rounds else {}
    for name, value in figures.items():
        print(f"  {name}: {value:,.3f}" if isinstance(value, float) else f"  {name}: {value}")
    if options.budgets_mib:
        arguments = [str(options.config), "--batches", str(options.batches), "--override", *options.override]
        figures["memory"] = memory(arguments, options.budgets_mib)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
