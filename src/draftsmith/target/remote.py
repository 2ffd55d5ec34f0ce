"""The target in a process of its own, on this machine or another one: the same worker, the same bits."""

from __future__ import annotations

import functools
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

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


class RemoteWorker:
    """A target elsewhere, used like a FeatureWorker. Called by one thread only."""

    def __init__(
        self, function: Callable[[Batch], npt.NDArray[Any]], served: Served, target: Target, device: torch.device
    ) -> None:
        """Raises ModelError if the weights there are not those of `target`, which is here."""
        if served.fingerprint != target.fingerprint():
            raise ModelError(
                f"a target worker has read other weights for {target.name} than its drafter; give all machines the same"
            )
        self.place = served.place
        self._function = function
        self._dtype = target.dtype
        self._device = device

    def __call__(self, batch: Batch) -> Handed:
        """Raises what the target raises there."""
        # Its memory is shared, so nobody may write there, and is given back when nobody uses it. from_numpy would warn.
        bits = from_dlpack(self._function(batch))
        return Handed(batch, bits.view(self._dtype).to(self._device))


def _computed(worker: FeatureWorker, batch: Batch) -> npt.NDArray[Any]:
    hidden_BSX = worker(batch).target_hidden
    found: npt.NDArray[Any] = np.asarray(hidden_BSX.view(BITS.get(hidden_BSX.dtype, hidden_BSX.dtype)))
    return found
