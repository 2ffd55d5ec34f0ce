"""What each rank of a machine takes of it: its drafter device, its target devices, its share of the cores."""

from __future__ import annotations

from typing import Any

import torch

from draftsmith.config import RunConfig
from draftsmith.distributed import Seat
from draftsmith.errors import ConfigError
from draftsmith.run.opening import set_up
from draftsmith.streams import num_cores

ALONE = Seat()


def seated(config: RunConfig, seat: Seat) -> RunConfig:
    """The configuration of one rank, which sees nothing of the others. Raises ConfigError if devices cannot be shared.

    Target devices are dealt out in order, as many to each; threads that are not given are the cores shared out.
    """
    if config.runtime == "ray":
        return _on_ray(_dealt(config, Seat(seat.rank, seat.size, seat.rank, seat.size)))
    return _dealt(config, seat)


def _on_ray(config: RunConfig) -> RunConfig:
    """Of all GPUs an actor sees its own, which is the first one there."""
    flow = config.flow
    own: dict[str, Any] = {"target_devices": tuple(map(_kind, flow.target_devices))}
    own |= {} if flow.drafter_device is None else {"drafter_device": _kind(flow.drafter_device)}
    return config.model_copy(update={"device": _kind(config.device), "flow": flow.model_copy(update=own)})


def _kind(device: str) -> str:
    return "cuda" if _is_gpu(device) else device


def _dealt(config: RunConfig, seat: Seat) -> RunConfig:
    if seat.num_local == 1 and not config.distributed.drafter_devices:
        return config
    devices, num = config.flow.target_devices, seat.num_local
    if len(devices) % num:
        raise ConfigError(
            f"flow.target_devices lists {len(devices)} devices for {num} processes of a machine, and each needs as "
            f"many as the others; list {len(devices) // num * num or num} or {-(-len(devices) // num) * num}"
        )
    share = len(devices) // num
    flow = {
        "target_devices": devices[seat.local_rank * share : (seat.local_rank + 1) * share],
        "drafter_device": None,
    }
    return config.model_copy(
        update={
            "device": _drafter_device(config, seat),
            "num_threads": config.num_threads or max(1, num_cores() // num),
            "flow": config.flow.model_copy(update=flow),
            "distributed": config.distributed.model_copy(update={"num_processes": num}),
        }
    )


def set_up_at(config: RunConfig, seat: Seat) -> RunConfig:
    """Set up torch for this rank; returns what all of them share, with what was left to the machine settled here."""
    settled = set_up(seated(config, seat))
    return config.model_copy(update={"target": settled.target, "train": settled.train, "eval": settled.eval})


def check_machine(config: RunConfig, num_processes: int) -> None:
    """Raises ConfigError if this machine does not have the devices that so many processes would use.

    No device is touched: whoever starts processes must not take their memory.
    """
    there = torch.cuda.device_count()
    for rank in range(num_processes):
        own = seated(config, Seat(rank, num_processes, rank, num_processes))
        for name in (own.device, *own.flow.target_devices):
            index = _gpu(name)
            if index is not None and index >= there:
                raise ConfigError(
                    f"process {rank} would use {name}, but this machine has {there} GPUs; lower "
                    "distributed.num_processes, or list devices that are here"
                )


def check_starter(config: RunConfig, seat: Seat | None) -> None:
    """Raises ConfigError if torchrun has started a command that starts processes on Ray."""
    if config.runtime == "ray" and seat is not None:
        raise ConfigError("runtime=ray starts its processes itself; start this command without torchrun")


def check_seat(config: RunConfig, seat: Seat) -> None:
    """Raises ConfigError for settings that several ranks cannot have."""
    wanted, there = config.distributed.num_processes, seat.num_local
    if config.runtime == "local" and wanted not in (1, there):  # Ray starts as many as are wanted
        raise ConfigError(
            f"distributed.num_processes is {wanted}, but {there} were started on this machine; leave it out "
            "where torchrun starts them"
        )
    if seat.size > 1 and config.target.cache == "first-epoch":
        raise ConfigError("target.cache=first-epoch is written by one process; with several set it to disk, or to none")


def uses_gpu(config: RunConfig, seat: Seat) -> bool:
    device = seated(config, seat).flow.drafter_device or seated(config, seat).device
    return torch.cuda.is_available() if device == "auto" else _gpu(device) is not None


def _drafter_device(config: RunConfig, seat: Seat) -> str:
    listed, num = config.distributed.drafter_devices, seat.num_local
    if listed:
        if len(listed) != num or len({*filter(_is_gpu, listed)}) < sum(map(_is_gpu, listed)):
            raise ConfigError(
                f"distributed.drafter_devices is {list(listed)}; list {num}, one for each process of a machine, and no "
                "GPU twice"
            )
        return listed[seat.local_rank]
    if config.flow.drafter_device is not None:
        raise ConfigError(
            f"flow.drafter_device is {config.flow.drafter_device!r}, one device for {num} processes; list one for each "
            "in distributed.drafter_devices"
        )
    if config.device == "cuda" or (config.device == "auto" and torch.cuda.is_available()):
        return f"cuda:{seat.local_rank}"
    if _is_gpu(config.device):
        raise ConfigError(
            f"device is {config.device!r}, one GPU for {num} processes; set device=cuda, so that each takes its own"
        )
    return "cpu" if config.device == "auto" else config.device


def _is_gpu(name: str) -> bool:
    return _gpu(name) is not None


def _gpu(name: str) -> int | None:
    """The number of a GPU; None for anything else."""
    kind, _, index = name.partition(":")
    return (int(index) if index.isdecimal() else 0) if kind == "cuda" else None
