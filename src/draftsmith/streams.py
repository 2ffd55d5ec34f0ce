"""Planned batches become hidden states, on the devices that a configuration lists, ahead of the training.

    plan -> collate -> target workers, one per entry of flow.target_devices -> in the order of the plan -> training

What arrives does not depend on how many workers there are, how fast they are, or how much may wait: every batch has its
shape from the plan, is computed by one worker with a fixed number of threads, and is handed on in its turn.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from draftsmith import data
from draftsmith.config import RunConfig
from draftsmith.data import TokenStore
from draftsmith.errors import StageError
from draftsmith.flow import FlowStats, Pipeline, verdict
from draftsmith.observe import memory_limit_bytes
from draftsmith.records import Batch, BatchSpec, FeatureBatch
from draftsmith.target import (
    CacheReader,
    ComputingWorker,
    FeatureCache,
    FeatureWorker,
    Handed,
    RecordingWorker,
    Target,
    attempts_at,
    feature_bytes,
    load_target,
    samples_of,
)

TARGET_IS_SLOW = "add a device to flow.target_devices, or set target.cache=first-epoch so that later epochs skip it"
TRAINING_IS_SLOW = "more target workers would not help; train on a faster device, or with fewer drafter.num_anchors"

DEFAULT_CPU_WORKERS = 4
EXIT_HUNG = 70
CONSUMER = "training"


@dataclass(frozen=True)
class Topology:
    """Who computes where. Threads are intra-op threads on CPU; num_processes share this machine."""

    target_devices: tuple[str, ...]
    drafter_device: str
    target_threads: int
    drafter_threads: int
    num_processes: int = 1

    @property
    def name(self) -> str:
        return "colocated" if set(self.target_devices) <= {self.drafter_device} else "split"


def topology(config: RunConfig, *, device: str, num_cores: int) -> Topology:
    """Devices and threads of a run; `device` is what flow leaves open.

    Threads are fixed by the configuration and never by the number of workers, because the number of threads may change
    the last bits of a product. On CPU several workers of few threads keep cores busy that one of many leaves idle.
    The drafter's thread gets half of the cores when a target computes beside it on CPU.
    """
    flow = config.flow
    threads = config.num_threads or num_cores
    by_default = min(threads, DEFAULT_CPU_WORKERS) if device == "cpu" else 1
    devices = tuple(_with_index(name) for name in flow.target_devices or (device,) * by_default)
    drafter_device = _with_index(flow.drafter_device or device)
    shared = config.target.cache != "disk" and any(torch.device(name).type == "cpu" for name in devices)
    return Topology(
        target_devices=devices,
        drafter_device=drafter_device,
        target_threads=flow.target_threads or (1 if flow.target_devices else threads // by_default),
        drafter_threads=max(1, threads // 2) if shared and drafter_device == "cpu" else threads,
        num_processes=config.distributed.num_processes,
    )


def _with_index(name: str) -> str:
    """One name for one device: cuda is cuda:0."""
    return "cuda:0" if name == "cuda" else name


def num_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# Computing workers of a run, one per entry of flow.target_devices; `target` is the trainer's own.
Workers = Callable[[RunConfig, Target, Topology], Sequence[ComputingWorker]]


def workers_here(config: RunConfig, target: Target, where: Topology) -> list[FeatureWorker]:
    """Threads of this process, each with a target: a twin where a device has the weights already, else loaded once."""
    here = torch.device(where.drafter_device)
    loaded = {where.drafter_device: target}
    for name in where.target_devices:
        if name not in loaded:
            loaded[name] = load_target(config.target, device=name)
    return [FeatureWorker(loaded[name].twin(), here) for name in where.target_devices]


@dataclass(frozen=True)
class FeatureStream:
    """Iterate for features in the order of the plan; `stats` says who is slow."""

    topology: Topology
    pipeline: Pipeline = field(repr=False)
    handed: Iterator[Handed] = field(repr=False)

    def __iter__(self) -> Iterator[FeatureBatch]:
        for handed in self.handed:
            yield handed.receive()
            del handed  # not held while the next one is waited for

    def stats(self) -> FlowStats:
        return self.pipeline.stats()

    def alive(self) -> None:
        """To be called now and then while the caller measures instead of training."""
        self.pipeline.alive()

    def summary(self) -> dict[str, Any]:
        """What metrics.jsonl and summary.json say about the flow."""
        return {"topology": self.topology.name, "devices": list(self.topology.target_devices), **record(self.stats())}


def end_process(error: StageError) -> None:
    """The last resort: nothing that this process holds can be saved, and checkpoints on disk are whole."""
    print(f"draftsmith: {error}; it cannot be interrupted, so the process ends; resume the run", file=sys.stderr)
    sys.stderr.flush()
    os._exit(EXIT_HUNG)


@contextmanager
def feature_stream(
    specs: Iterable[BatchSpec],
    config: RunConfig,
    store: TokenStore,
    target: Target,
    cache: FeatureCache | None,
    *,
    where: Topology,
    workers: Workers = workers_here,
    on_stall: Callable[[StageError], None] = lambda _error: None,
    on_hang: Callable[[StageError], None] = end_process,
    on_change: Callable[[str], None] = lambda _text: None,
) -> Iterator[FeatureStream]:
    """Open the stream of `specs`; leaving it means that no thread of it runs. `target` is the trainer's own.

    Raises StageError out of the iteration if a stage fails or hangs. Where training itself hangs in a call that does
    not return, such as a collective that one rank never joins, only `on_hang` can end it. `on_change` is told, by any
    thread, of a worker that fails where others can make it good, and of one that is back.
    """
    with Pipeline(
        "train",
        budget_bytes=config.flow.budget_bytes or default_budget_bytes(where),
        max_items=config.flow.max_items,
        watchdog_s=config.flow.watchdog_s,
        stop_s=config.flow.watchdog_s,  # a forward that is under way may take as long as any other
        describe=samples_of,
        on_stall=on_stall,
        on_hang=on_hang,
        on_change=on_change,
        consumer=(CONSUMER, TRAINING_IS_SLOW),
        unit="tokens",
    ) as pipeline:
        planned = pipeline.source("plan", specs, units_of=lambda spec: spec.num_slots)
        collated = pipeline.stage("collate", [_collator(store, where)], planned)
        stage = _target_stage(config, store, target, cache, where, workers)
        features = pipeline.stage(
            stage.name,
            stage.workers,
            collated,
            bytes_of=lambda spec: feature_bytes(spec, target),
            attempts=attempts_at,
            begin=functools.partial(_compute_with, where.target_threads),
            advice=stage.advice,
            places=stage.places,
        )
        handed = iter(features)
        # Now that every worker's thread has its number of threads, and before any of them works.
        torch.set_num_threads(where.drafter_threads)
        yield FeatureStream(where, pipeline, handed)


def default_budget_bytes(where: Topology) -> int:
    """A quarter of the smallest memory that results wait in; main memory is shared with the other processes."""
    limits = [memory_limit_bytes() // where.num_processes]
    if torch.device(where.drafter_device).type == "cuda":
        limits.append(torch.cuda.get_device_properties(where.drafter_device).total_memory)
    return min(limits) // 4


def record(stats: FlowStats) -> dict[str, Any]:
    """The figures of a flow as JSON: shares add up to 1 per stage."""
    found = verdict(stats)
    return {
        "bottleneck": found.bottleneck,
        "verdict": found.text,
        "wall_s": round(stats.wall_s, 3),
        "credited_bytes": stats.credited_bytes,
        "peak_bytes": stats.peak_bytes,
        "budget_bytes": stats.budget_bytes,
        "stages": {
            stage.name: {
                "workers": stage.num_workers,
                "busy": round(stage.busy, 4),
                "starved": round(stage.starved, 4),
                "blocked": round(stage.blocked, 4),
                "tokens_per_s": round(stats.rate(stage), 1),
                "queue_items": stage.queue_items,
                "max_items": stage.max_items,
                "queue_bytes": stage.queue_bytes,
                "retries": stage.num_retries,
                **({"by_worker": [round(rate, 1) for rate in stage.rates]} if stage.num_workers > 1 else {}),
            }
            for stage in stats.stages
        },
    }


def _collator(store: TokenStore, where: Topology) -> Callable[[BatchSpec], Batch]:
    collate = functools.partial(data.collate, store)
    if any(torch.device(name).type == "cuda" for name in (*where.target_devices, where.drafter_device)):
        return lambda spec: collate(spec).pinned()
    return collate


def _compute_with(num_threads: int) -> None:
    """Fix the number of intra-op threads of the calling thread."""
    torch.get_num_threads()  # a new thread takes over the number of the process when it is first asked, so ask first
    torch.set_num_threads(num_threads)


@dataclass(frozen=True)
class _TargetStage:
    """Where hidden states come from. computing: the workers that compute them, if any."""

    name: str
    workers: Sequence[Callable[[Batch], Handed]]
    advice: str
    computing: Sequence[ComputingWorker] = ()

    def places(self) -> list[str]:
        """Where they compute by now: one that was lost may have moved."""
        return [worker.place for worker in self.computing]


def _target_stage(
    config: RunConfig,
    store: TokenStore,
    target: Target,
    cache: FeatureCache | None,
    where: Topology,
    workers: Workers,
) -> _TargetStage:
    if cache is not None and cache.is_complete:
        return _TargetStage("cache", [CacheReader(cache, target)], "keep the cache on a faster disk")
    computing = workers(config, target, where)
    if cache is None:
        return _TargetStage("target", computing, TARGET_IS_SLOW, computing)
    collate = functools.partial(data.collate, store)
    recording = [RecordingWorker(worker, cache, target, collate) for worker in computing]
    return _TargetStage("target", recording, TARGET_IS_SLOW, computing)
