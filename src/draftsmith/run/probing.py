"""The speed to expect, measured on the devices of one process, or of all ranks at once."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from draftsmith.config import RunConfig
from draftsmith.distributed import Peers, Seat, joined
from draftsmith.flow.predict import rate_together
from draftsmith.observe import Progress
from draftsmith.run.opening import new_drafter, open_store, place, plan_epoch, specs_of
from draftsmith.run.pace import verdict
from draftsmith.run.rounds import check_step
from draftsmith.run.seating import check_seat, seated, set_up_at, uses_gpu
from draftsmith.target import load_tokenizer
from draftsmith.tuning import Probed, probe_devices, report, some_batches

NUM_SUMS = 3


def measure_at(config: RunConfig, seat: Seat, *, num_batches: int) -> str | None:
    """The part of one rank in `tune`, when all have been started."""
    check_seat(config, seat)
    check_step(config, seat.size)
    with joined(seat, on_gpu=uses_gpu(config, seat), timeout_s=config.flow.watchdog_s) as peers:
        settled = seated(set_up_at(config, seat), seat)
        with Progress(f"measuring {config.target.model}"):
            probed = _probed(settled, num_batches, begin=lambda: peers.wait_for_all("warm"))
        if peers.size == 1:
            return report(probed)
        peers.wait_for_all("measured")
        ranks = peers.gather("probed", _record(probed, _sum_s(peers, settled, probed.gradient_bytes)))
        return report_of_ranks(ranks, peers.hosts, grad_accum=config.train.grad_accum) if peers.leads else None


def report_of_ranks(ranks: Sequence[Mapping[str, Any]], hosts: Sequence[str], *, grad_accum: int) -> str:
    """What each rank measured, what they would give together, and who is slow."""
    rates, sum_s = [rank["tokens_per_s"] for rank in ranks], max(rank["sum_s"] for rank in ranks)
    step_tokens = grad_accum * ranks[0]["tokens_per_batch"]
    together = rate_together(rates, step_tokens=step_tokens, sum_s=sum_s)
    lines = []
    for number, (rank, host) in enumerate(zip(ranks, hosts, strict=True)):
        lines += [f"rank {number} on {host}: {rank['tokens_per_s']:,.0f} tokens/s, {rank['placement']}", *rank["lines"]]
    lines += [
        "",
        f"together: {together:,.0f} tokens/s with steps of {grad_accum} batches, {step_tokens:,.0f} tokens; summing up "
        f"gradients takes {1e3 * sum_s:,.0f} ms of a step ({sum_s * together / step_tokens:.0%})",
        verdict([1 - min(rates) / rate for rate in rates], hosts),
    ]
    return "\n".join(lines)


def _probed(config: RunConfig, num_batches: int, *, begin: Callable[[], object]) -> Probed:
    tokenizer = load_tokenizer(config.target)
    with tempfile.TemporaryDirectory() as directory:
        store = open_store(config, tokenizer, Path(directory))
        specs = some_batches(list(specs_of(plan_epoch(config, store, epoch=0), store)), num_batches)
        return probe_devices(
            config,
            place(config),
            store,
            specs,
            lambda target: new_drafter(config, target, tokenizer, store).to(target.device),
            begin,
        )


def _sum_s(peers: Peers, config: RunConfig, num_bytes: int) -> float:
    """Seconds that all ranks need to sum up so many bytes; the first sum, which opens connections, does not count."""
    device = place(config).drafter_device
    gradient = torch.zeros(num_bytes // 4, device=device)
    peers.sum(gradient)
    began = time.perf_counter()
    for _ in range(NUM_SUMS):
        peers.sum(gradient)
    float(gradient.sum())  # waits for a GPU
    return (time.perf_counter() - began) / NUM_SUMS


def _record(probed: Probed, sum_s: float) -> dict[str, Any]:
    """What a rank tells the first one."""
    best = probed.ordered[0]
    return {
        "lines": probed.lines(),
        "tokens_per_s": best.tokens_per_s,
        "placement": best.name if best.fits else f"{best.name}, which DOES NOT FIT",
        "tokens_per_batch": probed.slots / probed.num_batches,
        "sum_s": sum_s,
    }
