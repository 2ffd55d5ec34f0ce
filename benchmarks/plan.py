"""Figures of the plan: what the orders do, how long planning takes, what the edges save.

    python benchmarks/plan.py --json plan.json --lengths lengths.txt

Prints a table for every section and writes JSON. Times are wall times of single calls; the process pins nothing.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from draftsmith.plan import (
    POLICIES,
    PlanSettings,
    audit_buckets,
    audit_order,
    audit_ranks,
    build_plan,
    deal_order,
)
from draftsmith.plan.orders.quota import quota_order
from draftsmith.plan.report import plan_report, read_lengths
from draftsmith.plan.tables import text_table

PRODUCTION = (2120, 4017, 5471, 7493, 8009, 19581)
HAND_MADE = (770, 1216, 1728, 2432, 3296)


def synthetic_lengths(num: int, seed: int) -> np.ndarray:
    """Two log-normals, half and half, and 5.7 % at the limit of 8192: the law that fits the production counts."""
    draw = np.random.default_rng(seed)
    at_limit = int(0.057 * num)
    half = (num - at_limit) // 2
    pieces = [np.exp(draw.normal(6.837, 0.510, half)), np.exp(draw.normal(7.744, 0.431, num - at_limit - half))]
    return np.clip(np.concatenate([*pieces, np.full(at_limit, 8192.0)]), 16, 8192).astype(np.int64)


def orders(num_seeds: int) -> dict[str, Any]:
    """Every policy on the production counts: the worst of all seeds, means where a mean is meant."""
    figures = {}
    for name, policy in POLICIES.items():
        audits = [audit_order(policy(PRODUCTION, seed).sequence, PRODUCTION) for seed in range(num_seeds)]
        figures[name] = {
            "max_drift": max(audit.max_drift for audit in audits),
            "longest_run": max(audit.longest_run for audit in audits),
            "adjacent_repeats": max(audit.adjacent_repeats for audit in audits),
            "first_bucket_out": min(min(audit.exhaustion) for audit in audits),
            "small_buckets_out_mean": float(np.mean([max(audit.exhaustion[:5]) for audit in audits])),
            "tail_mean": float(np.mean([audit.tail for audit in audits])),
            "early_rate_of_largest": float(np.mean([audit.early_rate[-1] for audit in audits])),
            "mean_run_of_largest": float(np.mean([audit.mean_run[-1] for audit in audits])),
            "window_8": max(audit.windows[8] for audit in audits),
            "window_32": max(audit.windows[32] for audit in audits),
            "spectral_peak": float(np.mean([audit.spectral_peak for audit in audits])),
        }
    columns = list(next(iter(figures.values())))
    rows = [[name, *(f"{row[column]:,.4g}" for column in columns)] for name, row in figures.items()]
    print(f"orders, production counts, {num_seeds} seeds")
    print(text_table(["order", *(column.replace("_", " ") for column in columns)], rows), end="\n\n")
    return figures


def marginals(num_seeds: int) -> dict[str, Any]:
    """Is every bucket as likely at every step? z of its frequency over many seeds; rms 1 is ideal."""
    total = sum(PRODUCTION)
    rates = np.array(PRODUCTION) / total
    figures = {}
    for name in ("shuffle", "quota", "quota-nominal"):
        seen = np.zeros((len(PRODUCTION), total), dtype=np.int32)
        for seed in range(num_seeds):
            sequence = POLICIES[name](PRODUCTION, seed).sequence
            seen[sequence, np.arange(total)] += 1
        z = (seen / num_seeds - rates[:, None]) / np.sqrt(rates * (1 - rates) / num_seeds)[:, None]
        figures[name] = {"rms_z": float(np.sqrt((z**2).mean())), "max_z": float(np.abs(z).max())}
    rows = [[name, f"{row['rms_z']:.2f}", f"{row['max_z']:.1f}"] for name, row in figures.items()]
    print(f"is every bucket as likely at every step? {num_seeds} seeds")
    print(text_table(["order", "rms z (ideal 1)", "largest z"], rows), end="\n\n")
    return figures


def deals() -> dict[str, Any]:
    """One quota order dealt to ranks: in turn, by colouring, by the greedy rule."""
    order = POLICIES["quota"](PRODUCTION, 0).sequence
    figures = {}
    for world in (2, 4, 8, 64):
        for method in ("in turn", "coloring", "greedy"):
            started = time.perf_counter()
            deal = deal_order(order, world, method="greedy" if method == "greedy" else "coloring")
            seconds = time.perf_counter() - started
            if method == "in turn":
                deal = replace(deal, batches=np.arange(deal.batches.size).reshape(deal.batches.shape))
            ranks = audit_ranks(order, PRODUCTION, deal)
            figures[f"{world} ranks, {method}"] = {
                "max_drift": max(rank.max_drift for rank in ranks),
                "repeat_rate": sum(rank.adjacent_repeats for rank in ranks) / deal.batches.size,
                "longest_run": max(rank.longest_run for rank in ranks),
                "seconds": 0.0 if method == "in turn" else seconds,
            }
    rows = [
        [name, f"{row['max_drift']:.3f}", f"{row['repeat_rate']:.4f}", str(row["longest_run"]), f"{row['seconds']:.3f}"]
        for name, row in figures.items()
    ]
    print("dealing the production counts to ranks: the worst rank")
    print(text_table(["ranks", "max drift", "repeats per step", "longest run", "s"], rows), end="\n\n")
    return figures


def times() -> dict[str, Any]:
    """Seconds of planning, and peak memory of fresh processes that order a million batches."""
    lengths = synthetic_lengths(400_000, seed=3)
    million = [count * 1_000_000 // sum(PRODUCTION) for count in PRODUCTION[:-1]]
    million.append(1_000_000 - sum(million))
    figures: dict[str, Any] = {}

    def whole_plan() -> None:
        plan = build_plan(lengths, PlanSettings(), seed=0)
        deal_order(plan.order, 8)
        figures["whole plan, batches"] = plan.num_batches

    without_numba(
        "draftsmith.plan.orders.quota", lambda: clock(figures, "whole plan, 400,000 samples, 8 ranks", whole_plan)
    )
    clock(figures, "order of 1,000,000 batches, plain", lambda: quota_order(million, 1, phase=True, compiled=False))
    if importlib.util.find_spec("numba"):
        quota_order(PRODUCTION, 0, phase=True, compiled=True)  # compile
        clock(
            figures, "order of 1,000,000 batches, compiled", lambda: quota_order(million, 1, phase=True, compiled=True)
        )
        clock(figures, "opening step 900,000 of it", lambda: quota_order(million, 1, phase=True).sequence[900_000])
        singles = np.ones(1_000_000, dtype=np.int64)
        edges = np.cumsum(million)
        for bucket, end in enumerate(edges):
            singles[end - million[bucket] : end] = bucket + 1
        settings = PlanSettings(max_tokens=6, max_rows=1, edges=(1, 2, 3, 4, 5, 6))
        clock(
            figures,
            "the same with its samples and batches",
            lambda: build_plan(singles, settings, seed=0).batch(900_000),
        )
    for compiled in (False, True):
        if not compiled or importlib.util.find_spec("numba"):
            name = f"peak memory, MB, {'compiled' if compiled else 'plain'}"
            figures[name] = peak_memory(million, compiled)
    print("times in seconds")
    print(text_table(["what", "measured"], [[name, f"{value:,.3f}"] for name, value in figures.items()]), end="\n\n")
    return figures


def clock(figures: dict[str, Any], name: str, call: Callable[[], Any]) -> None:
    started = time.perf_counter()
    call()
    figures[name] = time.perf_counter() - started


def without_numba(module: str, call: Callable[[], None]) -> None:
    """Run with the plain loop, whatever is installed."""
    quota = importlib.import_module(module)
    kept, quota.compiled_extend = quota.compiled_extend, lambda num_steps, wanted: None
    try:
        call()
    finally:
        quota.compiled_extend = kept


def peak_memory(counts: list[int], compiled: bool) -> float:
    program = (
        "from draftsmith.plan.orders.quota import quota_order; "
        f"quota_order({counts}, 1, phase=True, compiled={compiled}); "
        # Not ru_maxrss: it starts from the parent's peak.
        "print([line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')][0])"
    )
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    return float(printed) / 1024


def edges(name: str, lengths: np.ndarray) -> dict[str, Any]:
    """Ways to cut the same lengths under a budget of 8192 tokens."""
    ways = {
        "by hand, 6": {"edges": HAND_MADE},
        "quantile, 8": {"edge_method": "quantile"},
        "geometric, 8": {"edge_method": "geometric"},
        **{f"chosen, {num}": {"num_buckets": num} for num in (4, 6, 8, 12, 16)},
    }
    figures: dict[str, Any] = {}
    for way, chosen in ways.items():
        for shapes in ("static", "dynamic"):
            plan = build_plan(lengths, PlanSettings(shapes=shapes, order="shuffle", **chosen), seed=0)
            whole = audit_buckets(plan, lengths)[-1]
            figures[f"{way}, {shapes}"] = {
                "batches": plan.num_batches,
                "padding": whole.pad_waste,
                "unused_budget": whole.slot_waste,
                "edges": list(plan.edges),
            }
    started = time.perf_counter()
    plan = build_plan(lengths, PlanSettings(batching="packed"), seed=0)
    whole = audit_buckets(plan, lengths)[-1]
    packed = {"batches": plan.num_batches, "padding": whole.pad_waste, "unused_budget": whole.slot_waste, "edges": []}
    figures["packed"] = packed | {"seconds": time.perf_counter() - started}
    before = figures["by hand, 6, static"]["batches"]
    rows = [
        [
            way,
            f"{row['batches']:,}",
            f"{row['batches'] / before - 1:+.1%}",
            f"{row['padding']:.1%}",
            f"{row['unused_budget']:.1%}",
            " ".join(map(str, row["edges"][:8])) + (" ..." if len(row["edges"]) > 8 else ""),
        ]
        for way, row in figures.items()
    ]
    print(f"edges on {name}: {len(lengths):,} samples, longest {int(lengths.max()):,}, {int(lengths.sum()):,} tokens")
    header = ["edges", "batches", "against by hand", "padding", "unused budget", "tops"]
    print(text_table(header, rows), end="\n\n")
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=Path, help="token counts, one a line, for the table on real lengths")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    figures: dict[str, Any] = {
        "python": platform.python_version(),
        "numpy": np.__version__,
        "machine": platform.machine(),
        "orders": orders(options.seeds),
        "marginals": marginals(200),
        "deals": deals(),
        "times": times(),
        "edges_synthetic": edges("synthetic lengths", synthetic_lengths(125_008, seed=1)),
    }
    if options.lengths:
        lengths = read_lengths(options.lengths)
        figures["edges_real"] = edges("real lengths, truncated to 8192", lengths)
        report = plan_report(lengths=lengths, policies=list(POLICIES), world_size=8)
        figures["report_real"] = report.record
        print(report.text)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
