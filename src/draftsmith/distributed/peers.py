"""The ranks of a run as one of them sees them: what they tell each other, what they agree on, what they sum up.

A rank is one process with one drafter device. Nothing here knows a plan: every rank computes the same one, so all that
is left to agree on is the clock, signals, and the sums of a step.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
from torch import distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from draftsmith.errors import ConfigError, RankError, first_line

BUCKET_BYTES = 64 << 20  # gradients that travel together
PREPARING = timedelta(days=7)  # the first rank may be tokenising all that time


@dataclass(frozen=True)
class Seat:
    """Where a process sits: as torchrun writes it into the environment of what it starts."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    num_local: int = 1


def seat_of(environment: Mapping[str, str]) -> Seat | None:
    """The seat that torchrun, or our own start of ranks, has given this process; None outside of both."""
    if "RANK" not in environment or "WORLD_SIZE" not in environment:
        return None
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    missing = [name for name in names if not environment.get(name, "").isdecimal()]
    if missing:
        raise ConfigError(f"the environment has a rank, but no number in {', '.join(missing)}; start with torchrun")
    return Seat(*(int(environment[name]) for name in names))


@dataclass(frozen=True)
class Agreement:
    """What all ranks know before a step: seconds on the first rank's clock, a signal that any of them received.

    save: whether the first rank wants to save the step before. took_s: by rank, how long it was busy with its own part
    of that step.
    """

    seconds: float
    signal: int | None
    save: bool = False
    took_s: tuple[float, ...] = ()


@dataclass(frozen=True)
class Peers:
    """All ranks, this one included. Alone, nothing is sent. Every method but `tell` is called by all ranks in turn.

    hosts: the name of every rank's machine, in order; empty when alone.
    Raises RankError where another rank has gone, or does not answer in time.
    """

    seat: Seat = Seat()
    store: Store | None = field(default=None, repr=False)
    hosts: tuple[str, ...] = ()

    @property
    def rank(self) -> int:
        return self.seat.rank

    @property
    def size(self) -> int:
        return self.seat.size

    @property
    def leads(self) -> bool:
        """Is this the rank that writes, saves, measures and speaks?"""
        return self.seat.rank == 0

    def tell(self, topic: str, word: Any) -> None:
        """Let all others `hear` a word, once per topic."""
        if self.store is not None:
            with _named("nobody takes what this rank has to tell"):
                self.store.set(topic, json.dumps(word))

    def hear(self, topic: str) -> Any:
        """What was told, as soon as it is."""
        assert self.store is not None, "alone there is nobody to hear"
        with _named("the first rank has gone before it told how to go on"):
            self.store.wait([topic], PREPARING)
            return json.loads(self.store.get(topic))

    def gather(self, topic: str, word: Any) -> list[Any]:
        """Every rank's word, in order; on the first rank. The others get an empty list."""
        if self.size == 1:
            return [word]
        self.tell(f"{topic}/{self.rank}", word)
        return [self.hear(f"{topic}/{rank}") for rank in range(self.size)] if self.leads else []

    def wait_for_all(self, topic: str) -> None:
        """Return when all have come here, however long some prepare."""
        self.gather(topic, True)
        with self.first_one_first(f"{topic}/all"):
            pass

    @contextmanager
    def first_one_first(self, topic: str) -> Iterator[None]:
        """The first rank does what is in the block; the others do it once that is done."""
        if not self.leads:
            self.hear(topic)
        yield
        if self.leads:
            self.tell(topic, True)

    def agree(self, seconds: float, signal: int | None, *, save: bool, mark: float, took_s: float) -> Agreement:
        """Between two steps. `mark` must be the same on every rank: it tells that they still train the same drafter.

        Raises RankError that names the ranks whose mark differs from the first one's.
        """
        if self.size == 1:
            return Agreement(seconds, signal, save)
        table = torch.zeros(5, self.size, dtype=torch.float64)
        table[:, self.rank] = torch.tensor([seconds, signal or 0, save, mark, took_s], dtype=torch.float64)
        clocks, signals, saves, marks, took = self.sum(table).tolist()
        others = [rank for rank, found in enumerate(marks) if found != marks[0] and marks[0] == marks[0]]
        if others:
            raise RankError(
                f"ranks {others} have another gradient than rank 0 after the same step ({marks}), so their drafters "
                "are no longer the same; resume from the last checkpoint, and train on devices of one kind"
            )
        return Agreement(clocks[0], int(max(signals)) or None, bool(saves[0]), tuple(took))

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """The sum over all ranks, in place, the same bits on each."""
        if self.size > 1:
            with _named("a sum was cut short"):
                dist.all_reduce(tensor)
        return tensor

    def from_first(self, numbers: torch.Tensor) -> torch.Tensor:
        """The first rank's numbers, in place."""
        if self.size > 1:
            with _named("the first rank has gone"):
                dist.broadcast(numbers, src=0)
        return numbers

    def sum_gradients(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Add up gradients over all ranks, a bucket at a time; a rank that has none takes part with zeros."""
        if self.size == 1:
            return
        for bucket in _buckets(parameters):
            gradients = [_gradient(parameter) for parameter in bucket]
            flat = self.sum(torch.cat([gradient.flatten() for gradient in gradients]))
            parts = torch.split(flat, [gradient.numel() for gradient in gradients])
            for gradient, part in zip(gradients, parts, strict=True):
                gradient.copy_(part.view_as(gradient))


ALONE = Peers()


@contextmanager
def joined(seat: Seat | None, *, on_gpu: bool, timeout_s: float) -> Iterator[Peers]:
    """The ranks of this run, for as long as the block lasts: just this process without a seat, or on the only one.

    timeout_s: how long a rank waits for the others in one exchange.
    """
    if seat is None or seat.size == 1:
        yield ALONE
        return
    with _named("the ranks could not find each other"):
        store, rank, size = next(rendezvous("env://"))
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if on_gpu else "gloo",
            store=PrefixStore("groups", store),
            rank=rank,
            world_size=size,
            timeout=timedelta(seconds=timeout_s),
            device_id=torch.device("cuda", seat.local_rank) if on_gpu else None,
        )
        words = PrefixStore("words", store)
        words.set(f"host/{rank}", socket.gethostname())
        hosts = tuple(words.get(f"host/{other}").decode() for other in range(size))
    yield Peers(seat, words, hosts)
    dist.destroy_process_group()  # not after an error: it might wait for somebody who is gone


@contextmanager
def _named(what: str, is_loss: Callable[[RuntimeError], bool] = lambda _error: True) -> Iterator[None]:
    """What torch says about a lost connection, as an error of ours."""
    try:
        yield
    except RuntimeError as error:
        if not is_loss(error):
            raise
        raise RankError(f"{what}: another rank has ended or hangs ({first_line(error)})") from error


@contextmanager
def lost_rank_named(what: str) -> Iterator[None]:
    """The same, where torch sends while it computes: errors of computing are let through."""
    with _named(what, is_loss=lambda error: isinstance(error, dist.DistError) or "/gloo/" in str(error)):
        yield


def _buckets(parameters: Iterable[torch.nn.Parameter]) -> Iterator[list[torch.nn.Parameter]]:
    bucket: list[torch.nn.Parameter] = []
    num_bytes = 0
    for parameter in parameters:
        bucket.append(parameter)
        num_bytes += parameter.numel() * parameter.element_size()
        if num_bytes >= BUCKET_BYTES:
            yield bucket
            bucket, num_bytes = [], 0
    if bucket:
        yield bucket


def _gradient(parameter: torch.nn.Parameter) -> torch.Tensor:
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    return parameter.grad
