"""Training on Ray: what a run takes of its machines, refused before it starts where they do not have it, and the start.

This process is the driver. It has no part in training, but all of it ends with it.
"""

from __future__ import annotations

import functools
import math
import os
import signal
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy.typing as npt
import torch

from draftsmith.config import RunConfig
from draftsmith.distributed import (
    Ended,
    Machine,
    RemoteFunction,
    Seat,
    Share,
    Takes,
    budget_bytes_in,
    own_ray,
    placed,
    ray_at,
    require_ray,
    shared_bytes,
    store_bytes_for,
)
from draftsmith.errors import ConfigError
from draftsmith.observe import Progress, memory_limit_bytes
from draftsmith.records import Batch
from draftsmith.run.directory import resume_command, with_directory
from draftsmith.run.launching import until_trained
from draftsmith.run.rank import obey
from draftsmith.run.rounds import check_step
from draftsmith.run.seating import seated
from draftsmith.streams import Topology, num_cores, topology
from draftsmith.target import RemoteWorker, Target, serve_target

LEAST_BUDGET_BYTES = 32 << 20


def launch_on_ray(config: RunConfig, *, name: str, resume: bool = False) -> dict[str, Any]:
    """Train with ranks and targets in actors; returns what summary.json holds.

    When a rank dies all ranks are started again from the last checkpoint, while targets keep their weights. Raises as
    `launch` and `ranks_on_ray` do.
    """
    config = with_directory(config, name, resume=resume)
    run = config.run.dir
    assert run is not None
    with ranks_on_ray(config) as (settled, ranks):
        Progress(str(run)).note(f"everything ends with this process; what goes on then is: {resume_command(run)}")
        return until_trained(settled, ranks, name=name, resume=resume)


@contextmanager
def ranks_on_ray(config: RunConfig) -> Iterator[tuple[RunConfig, Callable[[Mapping[str, Any]], Ended]]]:
    """Places for all ranks and their targets: the configuration as these machines settle it, and what runs the ranks.

    Raises ConfigError where Ray or its machines cannot do it.
    """
    require_ray()
    check_step(config, config.distributed.num_processes)
    with (
        _machines(config) as (settled, shares),
        placed(shares, placing_s=config.ray.placing_s, max_restarts=config.distributed.max_restarts) as places,
    ):
        yield settled, functools.partial(places.run, obey_in_actor, directory=os.getcwd())


def obey_in_actor(word: Mapping[str, Any], answer: Callable[[Mapping[str, Any]], None], actors: Sequence[Any]) -> int:
    """A rank in an actor, with targets in others. Returns the exit code that a process would have."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    return obey(word, answer, functools.partial(workers_elsewhere, actors))


def workers_elsewhere(actors: Sequence[Any], config: RunConfig, target: Target, where: Topology) -> list[RemoteWorker]:
    """Computing workers of a stream: targets in these actors, loaded at the same time if they are not there yet."""
    settings = config.target.model_dump(mode="json")
    functions: list[RemoteFunction[Batch, npt.NDArray[Any]]] = [
        RemoteFunction(
            actor,
            serve_target,
            settings,
            device,
            where.target_threads,
            config.deterministic,
            make_s=config.ray.loading_s,
            answer_s=config.flow.watchdog_s,
        )
        for actor, device in zip(actors, where.target_devices, strict=True)
    ]
    here = torch.device(where.drafter_device)
    return [RemoteWorker(function, target, here) for function in functions]


@contextmanager
def _machines(config: RunConfig) -> Iterator[tuple[RunConfig, Sequence[Share]]]:
    """A Ray that is up, what each rank takes of it, and the configuration with what its machines settle."""
    if config.ray.address is None:
        here = Machine(socket.gethostname(), num_cores(), torch.cuda.device_count(), shared_bytes())
        config, shares = _settled(config, [here])
        store = store_bytes_for(config.flow.budget_bytes or 0, len(shares))
        cpus = math.ceil(sum(share.cpus for share in shares))  # threads share cores, as they do in one process
        with own_ray(cpus=cpus, gpus=here.gpus, store_bytes=store):
            yield config, shares
        return
    with ray_at(config.ray.address) as machines:
        config, shares = _settled(config, [machine for machine in machines if machine.cpus])
        _refuse_if_fewer("CPUs", sum(share.cpus for share in shares), sum(machine.cpus for machine in machines))
        yield config, shares


def _settled(config: RunConfig, machines: Sequence[Machine]) -> tuple[RunConfig, list[Share]]:
    """With threads, device and budget, which must be the same for all ranks; and what each takes.

    Raises ConfigError if these machines have too few GPUs or too little room for waiting results.
    """
    num_ranks = config.distributed.num_processes
    together = -(-num_ranks // len(machines))
    num_budgets = together if len(machines) == 1 else 2 * together  # on its way a result is on two machines
    num_gpus = sum(machine.gpus for machine in machines)
    smallest = min(machines, key=lambda machine: machine.store_bytes)
    room = budget_bytes_in(smallest.store_bytes, num_budgets)
    budget = config.flow.budget_bytes
    if room < (budget or LEAST_BUDGET_BYTES):
        raise ConfigError(_too_small(smallest, budget or LEAST_BUDGET_BYTES, num_budgets))
    cores = int(min(machine.cpus for machine in machines))
    config = config.model_copy(
        update={
            "device": ("cuda" if num_gpus else "cpu") if config.device == "auto" else config.device,
            "num_threads": config.num_threads or max(1, cores // together),
            "flow": config.flow.model_copy(
                update={"budget_bytes": budget or min(room, memory_limit_bytes() // (4 * together))}
            ),
        }
    )
    shares = [_share(config, Seat(rank, num_ranks)) for rank in range(num_ranks)]
    _refuse_if_fewer("GPUs", sum(share.gpus for share in shares), num_gpus)
    return config, shares


def _share(config: RunConfig, seat: Seat) -> Share:
    own = seated(config, seat)
    assert own.num_threads is not None
    where = topology(own, device=own.device, num_cores=own.num_threads)
    # A target that nobody gave a GPU of its own shares the drafter's.
    gpus = 1.0 if own.flow.target_devices or own.flow.drafter_device else 0.5
    return Share(
        _takes(where.drafter_device, where.drafter_threads, gpus),
        [_takes(device, where.target_threads, gpus) for device in where.target_devices],
    )


def _takes(device: str, num_threads: int, gpus: float) -> Takes:
    kind = torch.device(device).type
    if kind not in ("cpu", "cuda"):
        raise ConfigError(f"device {device!r} cannot be used with runtime=ray; use cpu or cuda")
    return Takes(1, gpus) if kind == "cuda" else Takes(num_threads)


def _refuse_if_fewer(what: str, wanted: float, there: float) -> None:
    if there < wanted:
        raise ConfigError(
            f"the run takes {wanted:g} {what}, and Ray has {there:g}; lower distributed.num_processes or num_threads, "
            "list fewer flow.target_devices, or add machines"
        )


def _too_small(machine: Machine, budget_bytes: int, num_budgets: int) -> str:
    needed = store_bytes_for(budget_bytes, num_budgets)
    return (
        f"{machine.name} has {machine.store_bytes >> 20:,} MiB for Ray's object store (in /dev/shm), but up to "
        f"{budget_bytes >> 20:,} MiB wait for each rank (flow.budget_bytes), which takes {needed >> 20:,} MiB; lower "
        "it, give a container more with --shm-size, or start Ray with a larger --object-store-memory"
    )
