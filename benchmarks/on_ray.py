"""What Ray costs on one machine: bytes from one actor to another, and the pipeline against the one in one process.

    python benchmarks/on_ray.py configs/demo.toml --override target.cache=none --json on_ray.json

Transfer: an actor hands arrays to another through the object store, one after another. Pipeline: one target worker and
one trainer with a thread each, the same batches, the target in a thread of this process or in an actor; rounds are
interleaved, and Ray's start and the loading of the target do not count.
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from draftsmith.config import load_config
from draftsmith.distributed import RemoteFunction, Share, Takes, own_ray, placed
from draftsmith.observe import describe_environment
from draftsmith.run.on_ray import workers_elsewhere
from draftsmith.run.opening import set_up
from draftsmith.streams import Workers, feature_stream, workers_here
from flow_real import Bench, opened

FOR_S = 60.0  # of waiting for one answer
ONE_EACH = ("flow.target_devices=['cpu']", "num_threads=2")  # of which the drafter gets one


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path)
    parser.add_argument("--override", nargs="*", default=[], help="settings of that configuration, a.b=c")
    parser.add_argument("--batches", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--mib", type=int, default=40, help="of one array")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    config = set_up(load_config(options.config, [*options.override, *ONE_EACH]))
    share = Share(Takes(1), [Takes(1), Takes(1)])
    with (
        own_ray(cpus=3, gpus=0, store_bytes=2 << 30),
        placed([share], placing_s=FOR_S, max_restarts=0) as places,
    ):
        first, second = places.functions[0]
        rates = transfer(first, second, options.mib, options.rounds) if options.mib else []
        figures: dict[str, Any] = {"MiB": options.mib, "transfer, MB/s": rates}
        if options.batches:
            with opened(config, options.batches) as bench:
                figures |= pipelines(bench, second, options.rounds)
    for name, value in figures.items():
        print(f"  {name}: {value}")
    if options.json:
        found = {"environment": describe_environment(), **figures}
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def transfer(maker: Any, taker: Any, mib: int, num_rounds: int, count: int = 20) -> list[float]:
    """MB/s of each round, from the call for an array to having it."""
    take = RemoteFunction(taker, taking, maker, mib, make_s=FOR_S, answer_s=FOR_S)
    take(count)  # what the first calls pay for: pages of the store
    return [round(count * mib * 2**20 / take(count) / 1e6, 1) for _ in range(num_rounds)]


def taking(actor: Any, mib: int) -> tuple[Callable[[int], float], None]:
    ask = RemoteFunction[None, Any](actor, making, mib, make_s=FOR_S, answer_s=FOR_S)

    def take(count: int) -> float:
        start = time.perf_counter()
        for _ in range(count):
            array = ask(None)
            assert array[-1] == 1
            del array
        return time.perf_counter() - start

    return take, None


def making(mib: int) -> tuple[Callable[[None], Any], None]:
    array = np.ones(mib << 20, np.uint8)
    return lambda _nothing: array, None


def pipelines(bench: Bench, actor: Any, num_rounds: int) -> dict[str, Any]:
    ways: dict[str, Workers] = {
        "in one process": workers_here,
        "on Ray": functools.partial(workers_elsewhere, [actor]),
    }
    tokens = sum(spec.num_slots for spec in bench.specs)
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(num_rounds + 1):
        for name, workers in ways.items():
            taken = through(bench, workers)
            if number:  # the first one warms up
                seconds[name].append(taken)
    shares = [here / ray for here, ray in zip(*seconds.values(), strict=True)]
    return {
        "tokens": tokens,
        "largest result, MiB": max(s.num_slots for s in bench.specs) * bench.target.feature_size * 4 / 2**20,
        **{f"{name}, tokens/s": [round(tokens / taken, 1) for taken in all_] for name, all_ in seconds.items()},
        "on Ray against in one process": [round(share, 3) for share in shares],
        "median": round(statistics.median(shares), 3),
    }


def through(bench: Bench, workers: Workers) -> float:
    """Seconds of training on all batches."""
    arguments = bench.specs, bench.config, bench.store, bench.target, None
    with feature_stream(*arguments, where=bench.where, workers=workers) as stream:
        start = time.perf_counter()
        for item in stream:
            bench.train(item)
            del item
        taken = time.perf_counter() - start
    torch.set_num_threads(bench.where.drafter_threads)
    return taken


if __name__ == "__main__":
    main()
