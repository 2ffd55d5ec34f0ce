"""Figures of the flow: cost of a hop, throughput against the slowest stage alone, memory against the budget.

    python benchmarks/flow.py --json flow.json

Prints a table for every section and writes JSON. Stages are simulated: they sleep, or fill memory. The pipeline of a
real configuration is measured by flow_real.py.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from draftsmith.flow import FlowStats, Pipeline, pages, shares, verdict
from draftsmith.plan.tables import text_table

BUFFERS: dict[str, Callable[[int], Any]] = {"pages of their own": pages, "malloc": bytearray}


def hops(num_items: int, num_rounds: int) -> dict[str, Any]:
    """Items that cost nothing through a source, three stages and a consumer: what remains is the flow itself."""
    figures: dict[str, Any] = {}
    for max_items in (2, 8, 16, 256):
        seconds = []
        for _ in range(num_rounds):
            with Pipeline("hops", max_items=max_items) as pipeline:
                out = pipeline.source("source", range(num_items))
                for name in ("first", "second", "third"):
                    out = pipeline.stage(name, [lambda item: item], out, bytes_of=lambda _item: 1)
                started = time.perf_counter()
                assert sum(1 for _ in out) == num_items
                seconds.append(time.perf_counter() - started)
        best = min(seconds)
        figures[f"max_items {max_items}"] = {
            "seconds": best,
            "worst_seconds": max(seconds),
            "us_per_hop": 1e6 * best / num_items / 4,
        }
    rows = [
        [name, f"{row['seconds']:.2f}", f"{row['worst_seconds']:.2f}", f"{row['us_per_hop']:.1f}"]
        for name, row in figures.items()
    ]
    print(f"{num_items:,} items through four stages, {num_rounds} rounds")
    print(text_table(["queues", "s, best", "s, worst", "us per hop, best"], rows), end="\n\n")
    return figures


def simulated(num_items: int, trainer_s: float) -> dict[str, Any]:
    """Stages that sleep. The target's rate is given against the trainer's; delays are even, or vary twofold."""
    figures: dict[str, Any] = {}
    for rate, workers, jitter in itertools.product((0.5, 0.8, 1.0, 1.25, 2.0, 4.0), (1, 2), (0.0, 0.5)):
        figures[f"rate {rate:g}, {workers} workers, jitter {jitter:.0%}"] = _simulated(
            num_items, trainer_s, rate=rate, workers=workers, jitter=jitter
        )
    rows = [
        [name, f"{row['seconds']:.2f}", f"{row['slowest_alone_s']:.2f}", f"{row['efficiency']:.1%}", row["bottleneck"]]
        for name, row in figures.items()
    ]
    print(f"sleeping stages, {num_items} items, trainer {1e3 * trainer_s:g} ms an item")
    print(text_table(["target's rate", "s", "slowest alone, s", "efficiency", "bottleneck named"], rows), end="\n\n")
    return figures


def _simulated(num_items: int, trainer_s: float, *, rate: float, workers: int, jitter: float) -> dict[str, Any]:
    draw = random.Random(0)
    factors = [1 + jitter * (2 * draw.random() - 1) for _ in range(num_items)]
    target_s = trainer_s * workers / rate

    def collate(item: int) -> int:
        time.sleep(0.1 * trainer_s)
        return item

    def target(item: int) -> int:
        time.sleep(target_s * factors[item])
        return item

    def train(item: int) -> None:
        time.sleep(trainer_s * factors[-item])

    alone = {
        "target": _alone(target, num_items) / workers,
        "training": _alone(train, num_items),
    }
    with Pipeline("simulated", budget_bytes=24, consumer=("training", "")) as pipeline:
        collated = pipeline.stage("collate", [collate], pipeline.source("plan", range(num_items)))
        features = pipeline.stage("target", [target] * workers, collated, bytes_of=lambda _item: 1)
        started = time.perf_counter()
        for item in features:
            train(item)
        seconds = time.perf_counter() - started
        stats = pipeline.stats()
    slowest = max(alone.values())
    return {
        "seconds": seconds,
        "slowest_alone_s": slowest,
        "efficiency": slowest / seconds,
        "bottleneck": verdict(stats).bottleneck,
        "shares": shares(stats),
        "worst_share_error": worst_share_error(stats),
        "peak_bytes": stats.peak_bytes,
    }


def _alone(work: Callable[[int], Any], num_items: int) -> float:
    started = time.perf_counter()
    for item in range(num_items):
        work(item)
    return time.perf_counter() - started


def worst_share_error(stats: FlowStats) -> float:
    """How far busy + starved + blocked of any stage is from its wall time, as a share."""
    return max(abs(stage.wall_s / (stats.wall_s * stage.num_workers) - 1) for stage in stats.stages)


def memory(budget_mib: int) -> dict[str, Any]:
    """Fresh processes: results of random sizes, a slow consumer, four workers. Peak resident size above the start."""
    figures = {name: _filled(budget_mib, name) for name in BUFFERS}
    rows = [[way, *(f"{value:,.3f}" for value in row.values())] for way, row in figures.items()]
    print("memory against the budget, MiB")
    columns = [name.replace("_", " ") for name in next(iter(figures.values()))]
    print(text_table(["results in", *columns], rows), end="\n\n")
    return figures


def _filled(budget_mib: int, buffers: str) -> dict[str, float]:
    program = f"import flow; flow.fill({budget_mib}, {buffers!r})"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    command = [sys.executable, "-c", program]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout
    return dict(json.loads(printed))


def fill(budget_mib: int, buffers: str) -> None:
    """The process that `memory` measures; prints JSON."""
    mib, draw = 2**20, random.Random(0)
    sizes = [draw.choice([1, 4, 16, 40]) for _ in range(300)]

    def make(item: int) -> Any:
        result = BUFFERS[buffers](sizes[item] * mib)
        result[::4096] = b"x" * len(range(0, len(result), 4096))  # touch every page
        return result

    before = resident("VmRSS")
    with Pipeline("fill", budget_bytes=budget_mib * mib, max_items=64) as pipeline:
        source = pipeline.source("plan", range(len(sizes)))
        out = pipeline.stage("make", [make] * 4, source, bytes_of=lambda item: sizes[item] * mib)
        for result in out:
            time.sleep(0.002)
            del result
        peak = pipeline.stats().peak_bytes / mib
    grown = resident("VmHWM") - before
    print(
        json.dumps(
            {
                "budget": budget_mib,
                "peak_credited": peak,
                "peak_resident_above_start": grown,
                "resident_against_budget": grown / budget_mib,
            }
        )
    )


def resident(field: str) -> float:
    """VmRSS or VmHWM of this process in MiB."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(float(line.split()[1]) / 1024 for line in lines if line.startswith(field))


def chosen(name: str, wanted: Iterable[str] | None) -> bool:
    return not wanted or name in wanted


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=("hops", "simulated", "memory"))
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--simulated-items", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--budget-mib", type=int, default=256)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    figures: dict[str, Any] = {"python": platform.python_version(), "cores": len(os.sched_getaffinity(0))}
    if chosen("hops", options.only):
        figures["hops"] = hops(options.items, options.rounds)
    if chosen("simulated", options.only):
        figures["simulated"] = simulated(options.simulated_items, 0.02)
    if chosen("memory", options.only):
        figures["memory"] = memory(options.budget_mib)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
