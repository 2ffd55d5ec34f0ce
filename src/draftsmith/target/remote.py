"""The target in a process of its own, on this machine or another one: the same worker, the same bits."""

from __future__ import annotations

import functools
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.dlpack import from_dlpack

from draftsmith.config import TargetConfig
from draftsmith.errors import ModelError
from draftsmith.records import Batch
from draftsmith.target.allocator import keep_freed_memory
from draftsmith.target.model import Target, load_target
from draftsmith.target.worker import FeatureWorker, Handed

HERE_S = 2.0  # for a target that is there to say so; one that takes longer is waited for while others work
BITS = {torch.bfloat16: torch.int16}  # numpy has no bfloat16


@dataclass(frozen=True)
class Served:
    """What a target elsewhere says of itself; fingerprint: of its weights."""

    fingerprint: str
    place: str


def serve_target(
    settings: Mapping[str, Any], device: str, num_threads: int, deterministic: bool
) -> tuple[Callable[[Batch], npt.NDArray[Any]], Served]:
    """Where the target computes: the function that does, and what to know of it."""
    keep_freed_memory()
    torch.set_num_threads(num_threads)
    torch.use_deterministic_algorithms(deterministic)
    target = load_target(TargetConfig(**settings), device=device)
    said = Served(target.fingerprint(), f"{device} of {socket.gethostname()}")
    return functools.partial(_computed, FeatureWorker(target, torch.device("cpu"))), said


class Elsewhere(Protocol):
    """A function that `serve_target` has made in another process, which may die and be started again elsewhere."""

    def word(self, within_s: float | None = None) -> Served:
        """What it says of itself, as soon as it is there. Raises WorkerLostError if it does not come in time."""

    def __call__(self, batch: Batch, /) -> npt.NDArray[Any]:
        """Raises what the target raises, or WorkerLostError if its process dies meanwhile or does not answer."""

    def when_there(self, tell: Callable[[bool], None]) -> None:
        """Have `tell` called, by any thread, when it is there again or is known never to be."""


class RemoteWorker:
    """A target elsewhere, used like a FeatureWorker. Called by one thread only."""

    def __init__(self, function: Elsewhere, target: Target, device: torch.device) -> None:
        """Raises ModelError if the weights there are not those of `target`, which is here."""
        self._function = function
        self._name, self._dtype, self._fingerprint = target.name, target.dtype, target.fingerprint()
        self._device = device
        self.place = self._checked(function.word())

    def __call__(self, batch: Batch) -> Handed:
        """Raises what the target raises there, ModelError if it came back with other weights, or WorkerLostError."""
        self.place = self._checked(self._function.word(within_s=HERE_S))
        # Its memory is shared, so nobody may write there, and is given back when nobody uses it. from_numpy would warn.
        bits = from_dlpack(self._function(batch))
        return Handed(batch, bits.view(self._dtype).to(self._device))

    def when_back(self, tell: Callable[[bool], None]) -> None:
        """See flow.Returning: the target has a place again, and is loaded."""
        self._function.when_there(tell)

    def _checked(self, served: Served) -> str:
        """Where it is by now."""
        if served.fingerprint != self._fingerprint:
            raise ModelError(
                f"{served.place} has read other weights for {self._name} than the drafter; give all machines the same"
            )
        return served.place


def _computed(worker: FeatureWorker, batch: Batch) -> npt.NDArray[Any]:
    hidden_BSX = worker(batch).target_hidden
    found: npt.NDArray[Any] = np.asarray(hidden_BSX.view(BITS.get(hidden_BSX.dtype, hidden_BSX.dtype)))
    return found
