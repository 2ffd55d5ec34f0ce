"""What a placement can do at best: predicted tokens/s of colocated and split, and whether it fits. Pure arithmetic.

A device needs t_T seconds per token for the target and t_D for the drafter; its time is shared by all that runs on it,
so listing it twice adds no speed. With targets on devices d and the drafter on one of them or elsewhere, the rate is

    r = sum over d of (1 - r t_D [d has the drafter]) / t_T(d),  and at most 1 / t_D.

On one device that is 1 / (t_T + t_D). N equal devices give at best N / (t_T + t_D) however they are used; a split pays
where memory, larger batches or unequal devices matter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class DeviceProbe:
    """Measured on one device, alone. Bytes are what target and drafter need for a batch, models included."""

    device: str
    target_s_per_token: float
    drafter_s_per_token: float
    target_bytes: int
    drafter_bytes: int
    memory_bytes: int


@dataclass(frozen=True)
class Placement:
    """A way to use the devices, with the prediction for it."""

    target_devices: tuple[str, ...]
    drafter_device: str
    tokens_per_s: float
    needed_bytes: dict[str, int]
    fits: bool

    @property
    def name(self) -> str:
        """Colocated, or split k+1: k target workers feed the drafter."""
        return (
            "colocated" if set(self.target_devices) == {self.drafter_device} else f"split {len(self.target_devices)}+1"
        )

    @property
    def settings(self) -> str:
        listed = ", ".join(f'"{device}"' for device in self.target_devices)
        return f"flow.target_devices='[{listed}]' flow.drafter_device={self.drafter_device}"


def placements(probes: Sequence[DeviceProbe], entries: Sequence[str], *, batch_bytes: int) -> list[Placement]:
    """Every placement of the listed devices worth a look, those that fit first, then by speed; see _rank for ties.

    `entries` may name a device several times. `batch_bytes` is a batch of hidden states; two wait for the drafter.
    """
    by_name = {probe.device: probe for probe in probes}
    found = {}
    for drafter in probes:
        # The fastest first; the drafter's own device last, because it has something else to do.
        ranked = sorted(entries, key=lambda name: (name == drafter.device, by_name[name].target_s_per_token))
        for targets in [(drafter.device,), *(tuple(ranked[:count]) for count in range(1, len(ranked) + 1))]:
            place = _placement([by_name[name] for name in targets], drafter, batch_bytes)
            found[tuple(sorted(targets)), drafter.device] = place
    return sorted(found.values(), key=_rank)


def recommendation(ordered: Sequence[Placement]) -> str:
    """The best placement as settings to write down, with the reason."""
    best = ordered[0]
    if not best.fits:
        return "nothing fits into memory: lower batching.max_tokens, or tap fewer layers (target.num_taps)"
    text = f"{best.settings}: {best.tokens_per_s:,.0f} tokens/s predicted"
    others = [place for place in ordered[1:] if place.fits]
    if not others:
        return f"{text}; it is the only placement that fits"
    gain = best.tokens_per_s / others[0].tokens_per_s - 1
    if gain < 0.02:
        return f"{text}; {others[0].name} with {len(others[0].target_devices)} target workers is as fast"
    return f"{text}, {gain:.0%} more than the next ({others[0].name})"


def predicted_rate(targets: Sequence[DeviceProbe], drafter: DeviceProbe) -> float:
    """Tokens/s of a placement by the formula above."""
    distinct = {probe.device: probe for probe in targets}
    rate = sum(1 / probe.target_s_per_token for probe in distinct.values())
    if drafter.device in distinct:
        rate /= 1 + drafter.drafter_s_per_token / distinct[drafter.device].target_s_per_token
    return min(rate, 1 / drafter.drafter_s_per_token)


def rate_together(rates: Sequence[float], *, step_tokens: float, sum_s: float) -> float:
    """Tokens/s of ranks that share steps evenly, at the pace of the slowest, and sum up gradients once a step."""
    return step_tokens / (step_tokens / len(rates) / min(rates) + sum_s)


def _rank(place: Placement) -> tuple[bool, float, int, int]:
    """Of equals, more workers on CPU are better (each has few threads), and fewer on anything else."""
    on_cpu = place.target_devices.count("cpu")
    return not place.fits, -round(place.tokens_per_s, 6), -on_cpu, len(place.target_devices) - on_cpu


def _placement(targets: Sequence[DeviceProbe], drafter: DeviceProbe, batch_bytes: int) -> Placement:
    memory = {probe.device: probe.memory_bytes for probe in [*targets, drafter]}
    needed = dict.fromkeys(memory, 0)
    for probe in {probe.device: probe for probe in targets}.values():
        needed[probe.device] += probe.target_bytes
    for probe in targets:
        needed[probe.device] += batch_bytes
    needed[drafter.device] += drafter.drafter_bytes + 2 * batch_bytes
    return Placement(
        target_devices=tuple(probe.device for probe in targets),
        drafter_device=drafter.device,
        tokens_per_s=predicted_rate(targets, drafter),
        needed_bytes=needed,
        fits=all(num_bytes <= memory[device] for device, num_bytes in needed.items()),
    )
