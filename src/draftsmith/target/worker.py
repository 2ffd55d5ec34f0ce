"""Hidden states made by one thread and used by another: on CPU a plain value, on GPUs handed over by an event."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from draftsmith.errors import ModelError
from draftsmith.flow import Returning
from draftsmith.records import Batch, BatchSpec, FeatureBatch
from draftsmith.target.feature_cache import FeatureCache
from draftsmith.target.model import Target

BYTES_PER_SLOT = 8 + 1 + 1  # id, attention mask, loss mask


@dataclass(frozen=True)
class Handed:
    """A batch and its hidden states on the drafter's device, usable there once `ready` has happened."""

    batch: Batch
    target_hidden: torch.Tensor
    ready: torch.cuda.Event | None = None

    def receive(self) -> FeatureBatch:
        """For the thread that trains: its stream waits for the event, and memory lives as long as that stream needs."""
        device = self.target_hidden.device
        if self.ready is not None:
            stream = torch.cuda.current_stream(device)
            stream.wait_event(self.ready)
            self.target_hidden.record_stream(stream)
        return FeatureBatch(self.batch.to(device), self.target_hidden)


class ComputingWorker(Protocol):
    """A target that is called by one thread; `place` is the device it is on, in words."""

    place: str

    def __call__(self, batch: Batch) -> Handed: ...


class FeatureWorker:
    """A target of its own on one device. Called by one thread only."""

    def __init__(self, target: Target, drafter_device: torch.device) -> None:
        self.place = str(target.device)
        self._target = target
        self._drafter_device = drafter_device
        on_gpu = target.device.type == "cuda"
        self._stream = torch.cuda.Stream(target.device) if on_gpu else None  # type: ignore[no-untyped-call]

    def __call__(self, batch: Batch) -> Handed:
        """Raises ModelError that names sample and layer if a hidden state is not finite."""
        if self._stream is None:
            hidden_BSX = self._target.features(batch.input_ids)
            require_finite(hidden_BSX, batch.spec, self._target)
            return Handed(batch, hidden_BSX.to(self._drafter_device))
        return self._on_gpu(batch, self._stream)

    def _on_gpu(self, batch: Batch, stream: torch.cuda.Stream) -> Handed:
        with torch.cuda.device(stream.device), torch.cuda.stream(stream):
            input_ids = batch.input_ids.to(stream.device, non_blocking=True)
            hidden_BSX = self._target.features(input_ids)
            require_finite(hidden_BSX, batch.spec, self._target)  # waits for the device; the trainer does not
            moved_BSX = hidden_BSX.to(self._drafter_device, non_blocking=self._drafter_device.type == "cuda")
            # The copy was queued on this stream, so memory that is freed here is not reused before it is done.
            ready = torch.cuda.Event() if moved_BSX.is_cuda else None  # type: ignore[no-untyped-call]
            if ready is not None:
                ready.record(stream)
        return Handed(batch, moved_BSX, ready)


class CacheReader:
    """Hidden states from disk instead of a target."""

    def __init__(self, cache: FeatureCache, target: Target) -> None:
        self._cache = cache
        self._target = target

    def __call__(self, batch: Batch) -> Handed:
        """Raises ModelError that names sample and layer if a hidden state is not finite."""
        hidden_BSX = self._cache.batch(batch.spec.samples, batch.spec.padded_length)
        require_finite(hidden_BSX, batch.spec, self._target)
        return Handed(batch, hidden_BSX.to(self._target.device))


class RecordingWorker:
    """A target whose hidden states are kept: what is missing is computed, and everything is read back.

    A sample is computed in the one batch that the cache has for it, also if it is asked for in another: so what is read
    does not depend on how far other workers are, or on where an earlier run was stopped.
    """

    def __init__(
        self,
        compute: Callable[[Batch], Handed],
        cache: FeatureCache,
        target: Target,
        collate: Callable[[BatchSpec], Batch],
    ) -> None:
        self._compute = compute
        self._cache = cache
        self._read = CacheReader(cache, target)
        self._collate = collate

    def __call__(self, batch: Batch) -> Handed:
        """Raises ModelError that names sample and layer if a hidden state is not finite."""
        for sample in batch.spec.samples:
            if self._cache.missing([sample]):
                spec = self._cache.spec_of(sample)
                whole = batch if spec == batch.spec else self._collate(spec)
                self._cache.record(spec.samples, self._compute(whole).receive().target_hidden)
        return self._read(batch)

    def when_back(self, tell: Callable[[bool], None]) -> None:
        """See flow.Returning: when the target is."""
        assert isinstance(self._compute, Returning)
        self._compute.when_back(tell)


def require_finite(hidden_BSX: torch.Tensor, spec: BatchSpec, target: Target) -> None:
    """Raises ModelError naming the first sample and layer whose hidden states are not finite."""
    # One pass at the speed of memory: a sum is finite unless a term is not, or the terms are absurd.
    if bool(hidden_BSX.sum(dtype=torch.float32).isfinite()):
        return
    bad_BK = ~hidden_BSX.reshape(*hidden_BSX.shape[:2], len(target.layer_ids), -1).isfinite().all(-1).all(1)
    if not bool(bad_BK.any()):
        return
    row, place = (int(index) for index in bad_BK.nonzero()[0])
    raise ModelError(
        f"hidden states of target {target.name} are not finite for sample {spec.samples[row]} at layer "
        f"{target.layer_ids[place]} (batch {spec.seq} of epoch {spec.epoch}); set target.dtype=float32, or leave the "
        "sample out"
    )


def feature_bytes(spec: BatchSpec, target: Target) -> int:
    """Bytes of a batch with its hidden states, known from the plan alone."""
    return spec.num_slots * (target.feature_size * target.dtype.itemsize + BYTES_PER_SLOT)


def attempts_at(error: Exception) -> int:
    """How often a batch is tried: what is not finite once more, what comes from the device twice more."""
    return 2 if isinstance(error, ModelError) else 3


def samples_of(item: Any) -> str:
    """A planned or collated batch in words, for errors."""
    spec = item if isinstance(item, BatchSpec) else item.spec
    shown = ", ".join(map(str, spec.samples[:8])) + (", ..." if len(spec.samples) > 8 else "")
    return f"batch {spec.seq} of epoch {spec.epoch}, samples {shown}"
