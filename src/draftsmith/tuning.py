"""A short probe of the configured devices: seconds and bytes per token of target and drafter, and what follows."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import torch

from draftsmith import data
from draftsmith.config import RunConfig
from draftsmith.data import TokenStore
from draftsmith.drafter import Drafter
from draftsmith.flow.predict import DeviceProbe, Placement, placements, recommendation
from draftsmith.observe import memory_limit_bytes
from draftsmith.records import Batch, BatchSpec, FeatureBatch
from draftsmith.streams import Topology
from draftsmith.target import Target, feature_bytes, load_target
from draftsmith.training import TrainState, train_step

T = TypeVar("T")
NUM_CALLS = 3
BYTES_PER_MASTER = 4 * 4  # fp32 master, gradient, two moments


@dataclass(frozen=True)
class Probed:
    """What one rank measured: each of its devices, and what the placements of them would give, the best one first.

    slots, feature_bytes: of the batches that it measured on. gradient_bytes: of the drafter, which ranks sum up.
    """

    devices: Sequence[DeviceProbe]
    ordered: Sequence[Placement]
    num_batches: int
    slots: int
    feature_bytes: int
    gradient_bytes: int

    def lines(self) -> list[str]:
        """A row per device."""
        return [
            f"  {probe.device}: target {1e6 * probe.target_s_per_token:,.1f} us/token, "
            f"drafter {1e6 * probe.drafter_s_per_token:,.1f} us/token"
            for probe in self.devices
        ]


def probe_devices(
    config: RunConfig,
    where: Topology,
    store: TokenStore,
    specs: Sequence[BatchSpec],
    new_drafter: Callable[[Target], Drafter],
    begin: Callable[[], object],
) -> Probed:
    """Measure on these batches. `begin` is called once, when the first device is warm, just before it is measured."""
    devices = list(dict.fromkeys([*where.target_devices, where.drafter_device]))
    probes = [_probe(config, devices[0], store, specs, new_drafter, begin)]
    probes += [_probe(config, device, store, specs, new_drafter, lambda: None) for device in devices[1:]]
    target = load_target(config.target)
    sizes = [feature_bytes(spec, target) for spec in specs]
    entries = [*where.target_devices, where.drafter_device] if where.name == "split" else list(where.target_devices)
    ordered = placements(probes, entries, batch_bytes=max(sizes))
    return Probed(
        probes,
        ordered,
        num_batches=len(specs),
        slots=sum(spec.num_slots for spec in specs),
        feature_bytes=sum(sizes),
        gradient_bytes=4 * sum(parameter.numel() for parameter in new_drafter(target).parameters()),
    )


def report(probed: Probed) -> str:
    """A row per device, a row per placement, one recommendation."""
    per_token = probed.feature_bytes / probed.slots
    measured = f"measured on {probed.num_batches} batches, {probed.slots:,} tokens"
    head = f"{measured}; hidden states take {per_token:,.0f} bytes a token"
    rows = [*probed.lines(), "", *map(_row, probed.ordered), ""]
    return "\n".join([head, *rows, f"recommended: {recommendation(probed.ordered)}"])


def _row(place: Placement) -> str:
    needs = ", ".join(f"{device} {num_bytes / 2**30:.2f} GiB" for device, num_bytes in place.needed_bytes.items())
    where = f"{place.name}: target on {', '.join(place.target_devices)}; drafter on {place.drafter_device}"
    return f"{where}: {place.tokens_per_s:,.0f} tokens/s, {'fits' if place.fits else 'DOES NOT FIT'} ({needs})"


def _probe(
    config: RunConfig,
    device: str,
    store: TokenStore,
    specs: Sequence[BatchSpec],
    new_drafter: Callable[[Target], Drafter],
    begin: Callable[[], object],
) -> DeviceProbe:
    target = load_target(config.target, device=device)
    drafter = new_drafter(target)
    state = TrainState.create(drafter, config, store.tokens_seen("train"))
    batches = [data.collate(store, spec).to(target.device) for spec in specs]
    hidden = target.features(batches[0].input_ids)  # the first call pays for things that later ones have
    train_step(state, FeatureBatch(batches[0], hidden), target, config, progress=0.5)
    target_s, drafter_s = 0.0, 0.0
    begin()
    for batch in batches:
        seconds, hidden = _timed(target.device, partial(target.features, batch.input_ids))
        target_s += seconds
        step = partial(train_step, state, FeatureBatch(batch, hidden), target, config, progress=0.5)
        drafter_s += _timed(target.device, step)[0]
    return _device_probe(device, target, drafter, batches, target_s, drafter_s)


def _device_probe(
    device: str, target: Target, drafter: Drafter, batches: Sequence[Batch], target_s: float, drafter_s: float
) -> DeviceProbe:
    slots = sum(batch.spec.num_slots for batch in batches)
    weights = sum(tensor.numel() * tensor.element_size() for tensor in target.model.parameters())
    ends = {id(t): t.numel() * t.element_size() for t in (target.embedding.weight, target.head.weight)}
    masters = BYTES_PER_MASTER * sum(parameter.numel() for parameter in drafter.parameters())
    largest = max(feature_bytes(batch.spec, target) for batch in batches)
    on_gpu = target.device.type == "cuda"
    peak = torch.cuda.max_memory_allocated(target.device) if on_gpu else weights + masters + 4 * largest
    return DeviceProbe(
        device=device,
        target_s_per_token=target_s / slots,
        drafter_s_per_token=drafter_s / slots,
        target_bytes=weights + largest,
        drafter_bytes=max(masters + sum(ends.values()), peak - weights),
        memory_bytes=torch.cuda.get_device_properties(target.device).total_memory if on_gpu else memory_limit_bytes(),
    )


def _timed(device: torch.device, call: Callable[[], T]) -> tuple[float, T]:
    """The fastest of a few calls, in seconds: what disturbs one of them says nothing of the device."""
    seconds = []
    for _ in range(NUM_CALLS):
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        start = time.perf_counter()
        result = call()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - start)
    return min(seconds), result


def some_batches(specs: Sequence[BatchSpec], num: int) -> list[BatchSpec]:
    """Batches from all over a plan, so that short and long ones are there as they are in training."""
    step = max(1, len(specs) // num)
    return list(itertools.islice(itertools.islice(specs, 0, None, step), num))
