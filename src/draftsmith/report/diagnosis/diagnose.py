"""The curve explains itself: from the losses and buckets of the steps to named findings and one paragraph."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from draftsmith.report.diagnosis import shapes
from draftsmith.report.diagnosis.decompose import Parts, decompose
from draftsmith.report.diagnosis.levels import BucketEffect, bucket_effect, hidden_modes
from draftsmith.report.diagnosis.rhythm import Rhythm, Spectrum, of_whole_epochs, spectrum_of, strongest_rhythm
from draftsmith.report.diagnosis.waves import OrderWave, order_wave
from draftsmith.report.record import FloatArray, IntArray

TOO_SHORT = 40


@dataclass(frozen=True)
class Curve:
    """What is known of a run's loss. All [n]; x: the step to name in words; bucket: -1 where not recorded. restarts:
    indices at which a run was resumed. policy: the order's name in the configuration."""

    loss: FloatArray
    x: FloatArray
    bucket: IntArray
    epoch: IntArray
    lr_factor: FloatArray
    restarts: tuple[int, ...] = ()
    policy: str = ""


@dataclass(frozen=True)
class Diagnosis:
    """What was found; None, empty and zero where there is nothing to say.

    index: of the finite losses, which are all that `parts` and places of findings count.
    """

    curve: Curve
    index: IntArray
    num_not_finite: int
    parts: Parts | None = None
    spectrum: Spectrum | None = None
    effect: BucketEffect | None = None
    wave: OrderWave | None = None
    rhythm: Rhythm | None = None
    modes: float | None = None
    spikes: tuple[int, ...] = ()
    jumps: tuple[int, ...] = ()
    stairs: float | None = None
    plateau: shapes.Plateau | None = None
    rises_from: int | None = None

    @property
    def codes(self) -> tuple[str, ...]:
        """Names of the findings, the most important first."""
        found = {
            "not-finite": self.num_not_finite > 0,
            "short": self.parts is None,
            "rising": self.rises_from is not None,
            "never-moved": self.plateau is not None and self.plateau.kind == "start",
            "jump": bool(self.jumps),
            "stairs": self.stairs is not None,
            "order-wave": self.wave is not None,
            "rhythm": self.rhythm is not None and self.rhythm.cause == "",
            "lr-rhythm": self.rhythm is not None and self.rhythm.cause == "learning rate",
            "levels": self.effect is not None and len(self.effect.groups) > 1,
            "bucket-effect": self.effect is not None and len(self.effect.groups) == 1,
            "modes": self.modes is not None,
            "spikes": bool(self.spikes),
            "plateau": self.plateau is not None and self.plateau.kind != "start",
        }
        return tuple(name for name, is_so in found.items() if is_so)

    def step(self, place: int) -> int:
        """The step of an entry of `parts`."""
        return int(self.curve.x[self.index[place]])


def diagnose(curve: Curve) -> Diagnosis:
    """Take a curve apart and name what stands out. Never fails on a short, flat or broken curve: it says so."""
    index = np.flatnonzero(np.isfinite(curve.loss))
    num_not_finite = len(curve.loss) - len(index)
    if len(index) < TOO_SHORT:
        return Diagnosis(curve, index, num_not_finite)
    loss, bucket, epoch = curve.loss[index], np.maximum(curve.bucket[index], 0), curve.epoch[index]
    parts = decompose(loss, bucket, int(bucket.max()) + 1)
    spectrum = spectrum_of(parts)
    effect = bucket_effect(parts, bucket)
    rhythm = strongest_rhythm(parts, spectrum, curve.lr_factor[index], bucket)
    if rhythm is not None and rhythm.cause == "buckets":
        rhythm = of_whole_epochs(rhythm, bucket, epoch)
    wave = order_wave(parts, bucket) if effect is not None else None
    is_unexplained = rhythm is not None and rhythm.cause != "buckets"
    jumps = shapes.jumps(parts, bucket)
    rises = shapes.rises_from(parts)
    stairs, flat = shapes.stairs(parts, bucket, epoch), shapes.plateau(parts)
    return Diagnosis(
        curve=curve,
        index=index,
        num_not_finite=num_not_finite,
        parts=parts,
        spectrum=spectrum,
        effect=effect,
        wave=wave,
        # What buckets explain is told as the order's wave, and is no finding where the order does not clump.
        # Stairs come back with every epoch, which is no further finding either.
        rhythm=rhythm if (is_unexplained and stairs is None) or wave is not None else None,
        modes=None if is_unexplained else hidden_modes(parts),
        spikes=tuple(shapes.spikes(parts, bucket)),
        jumps=tuple(jumps),
        stairs=stairs,
        plateau=flat if flat is None or flat.kind != "middle" or not jumps else None,
        rises_from=rises if not jumps else None,  # a jump bends the trend on both sides of it
    )
