"""Loss curves whose causes are known, for seeds at will: name -> (curve, the findings that it must be given)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from draftsmith.plan.orders import policy_named
from draftsmith.report.diagnosis import Curve

LENGTH = 3000
COUNTS = (140, 260, 350, 480, 515, 1255)
LEVELS = (0.0, 0.02, 0.5, 0.53, 1.0, 1.04)
FLOATS = np.ndarray

Made = tuple[Curve, set[str]]


def curve_of(loss: FLOATS, bucket: FLOATS | None = None, **known: object) -> Curve:
    total = len(loss)
    nothing = np.full(total, -1) if bucket is None else bucket
    facts = {"x": np.arange(1.0, total + 1), "epoch": np.zeros(total, dtype=np.int64), "lr_factor": np.ones(total)}
    return Curve(loss=loss, bucket=nothing.astype(np.int64), **{**facts, **known})  # type: ignore[arg-type]


def falling(total: int = LENGTH) -> FLOATS:
    """A loss as it falls: fast, then ever slower, and still falling at the end."""
    return 2.0 + 8.0 * (1 + np.arange(total)) ** -0.3


def noise(rng: np.random.Generator, total: int = LENGTH, memory: float = 0.0, width: float = 0.08) -> FLOATS:
    fresh = rng.normal(0, width * np.sqrt(1 - memory**2), total)
    for i in range(1, total):
        fresh[i] += memory * fresh[i - 1]
    return fresh


def ordered(policy: str, seed: int, counts: tuple[int, ...] = COUNTS) -> FLOATS:
    return policy_named(policy)(list(counts), 1000 + seed).sequence.astype(np.int64)


def _clean(seed: int) -> Made:
    return curve_of(falling() + noise(np.random.default_rng(seed)), ordered("shuffle", seed)), set()


def _clean_with_memory(seed: int) -> Made:
    rng = np.random.default_rng(seed)
    return curve_of(falling() + noise(rng, memory=0.8), ordered("shuffle", seed)), set()


def _clean_with_shrinking_noise(seed: int) -> Made:
    curve = falling()
    return curve_of(curve * (1 + noise(np.random.default_rng(seed), width=0.05)), ordered("quota", seed)), set()


def _clean_and_sequential(seed: int) -> Made:
    return curve_of(falling() + noise(np.random.default_rng(seed)), ordered("sequential", seed)), set()


def _clean_and_short(seed: int) -> Made:
    return curve_of(falling(150) + noise(np.random.default_rng(seed), 150), None), set()


def _clean_with_a_cosine_and_no_buckets(seed: int) -> Made:
    share = np.linspace(0, 1, LENGTH)
    loss = 2 + 1.5 * (1 - share) ** 1.5 + 5 * np.exp(-share * 60) + noise(np.random.default_rng(seed))
    return curve_of(loss, lr_factor=0.5 + 0.5 * np.cos(np.pi * share)), set()


def _levels(policy: str, seed: int, expected: set[str], levels: tuple[float, ...] = LEVELS) -> Made:
    bucket = ordered(policy, seed)
    return curve_of(falling() + np.array(levels)[bucket] + noise(np.random.default_rng(seed)), bucket), expected


def _overlapping_buckets(seed: int) -> Made:
    return _levels("quota", seed, {"bucket-effect"}, (0.0, 0.03, 0.06, 0.09, 0.12, 0.15))


def _grouped_by_length(seed: int) -> Made:
    """Fifty batches at a time, sorted from long to short: what grouping by length does."""
    rng = np.random.default_rng(seed)
    bucket = np.concatenate([np.sort(part)[::-1] for part in np.array_split(ordered("shuffle", seed), LENGTH // 50)])
    return curve_of(falling() + np.array(LEVELS)[bucket] + noise(rng), bucket), {"levels", "order-wave"}


def _rhythm_of_something_else(seed: int) -> Made:
    rng = np.random.default_rng(seed)
    swing = 0.1 * np.sin(2 * np.pi * (np.arange(LENGTH) / 64 + rng.random()))
    return curve_of(falling() + swing + noise(rng), ordered("shuffle", seed)), {"rhythm"}


def _rhythm_of_the_learning_rate(seed: int) -> Made:
    rng = np.random.default_rng(seed)
    swing = np.cos(2 * np.pi * np.arange(LENGTH) / 250)
    return curve_of(falling() + 0.12 * swing + noise(rng), lr_factor=0.6 + 0.4 * swing), {"lr-rhythm"}


def _jump(seed: int) -> Made:
    """A restart that lost the optimiser: up at once, down again slowly."""
    rng = np.random.default_rng(seed)
    after = np.arange(LENGTH) - (1200 + seed % 400)
    up = np.where(after >= 0, 0.9 * np.exp(-np.maximum(after, 0) / 250), 0)
    return curve_of(falling() + up + noise(rng), ordered("quota", seed)), {"jump"}


def _spikes(seed: int) -> Made:
    rng = np.random.default_rng(seed)
    loss = falling() + noise(rng)
    for at in rng.choice(np.arange(200, LENGTH - 10), 6, replace=False):
        loss[at : at + 3] += (3.0, 1.5, 0.7)
    return curve_of(loss, ordered("shuffle", seed)), {"spikes"}


def _plateau_at_the_end(seed: int) -> Made:
    loss = 2 + 5 * np.exp(-np.arange(LENGTH) / 250) + noise(np.random.default_rng(seed))
    return curve_of(loss, ordered("shuffle", seed)), {"plateau"}


def _plateau_in_the_middle(seed: int) -> Made:
    steps = np.arange(LENGTH)
    loss = 2 + 3 * np.exp(-steps / 100) + 1.5 / (1 + np.exp((steps - 2000) / 60)) + noise(np.random.default_rng(seed))
    loss -= 0.6 * np.clip((steps - 2200) / 800, 0, 1)
    return curve_of(loss), {"plateau"}


def _never_moved(seed: int) -> Made:
    return curve_of(10.8 + noise(np.random.default_rng(seed)), ordered("shuffle", seed)), {"never-moved"}


def _rising(seed: int) -> Made:
    late = np.clip((np.arange(LENGTH) - 1500) / 1500, 0, 1)
    return curve_of(falling() + 2.0 * late**1.5 + noise(np.random.default_rng(seed))), {"rising"}


def _two_kinds_of_samples(seed: int) -> Made:
    rng = np.random.default_rng(seed)
    loss = falling() + 0.6 * (rng.random(LENGTH) < 0.35) + noise(rng)
    return curve_of(loss, ordered("shuffle", seed)), {"modes"}


def _stairs(seed: int) -> Made:
    epoch = np.arange(LENGTH) // 500
    loss = 4 - 0.35 * epoch - 0.00002 * np.arange(LENGTH) + noise(np.random.default_rng(seed))
    bucket = np.concatenate([ordered("quota", seed + e, (100, 150, 250)) for e in range(6)])
    return curve_of(loss, bucket, epoch=epoch), {"stairs"}


def _not_finite(seed: int) -> Made:
    loss = falling() + noise(np.random.default_rng(seed))
    loss[[700, 701, 2000]] = np.nan, np.inf, np.nan
    return curve_of(loss, ordered("shuffle", seed)), {"not-finite"}


def _too_short(seed: int) -> Made:
    return curve_of(falling(20) + noise(np.random.default_rng(seed), 20)), {"short"}


def _levels_and_spikes(seed: int) -> Made:
    curve, _ = _levels("quota", seed, set())
    loss = curve.loss.copy()
    loss[[900, 1700, 2500]] += 4
    return curve_of(loss, curve.bucket), {"levels", "spikes"}


def _levels_and_a_jump(seed: int) -> Made:
    curve, _ = _levels("shuffle", seed, set())
    after = np.arange(LENGTH) - 1600
    up = np.where(after >= 0, 1.2 * np.exp(-np.maximum(after, 0) / 300), 0)
    return curve_of(curve.loss + up, curve.bucket), {"levels", "jump"}


def _sequential_over_epochs(seed: int) -> Made:
    """Short batches first, in every epoch: a saw with the period of an epoch."""
    counts = (40, 60, 80, 100, 100, 120)
    bucket = np.concatenate([ordered("sequential", seed + e, counts) for e in range(6)])
    loss = falling() + np.array(LEVELS)[bucket] + noise(np.random.default_rng(seed))
    return curve_of(loss, bucket, epoch=np.arange(LENGTH) // 500), {"levels", "order-wave"}


CLEAN: dict[str, Callable[[int], Made]] = {
    "clean": _clean,
    "clean, noise with memory": _clean_with_memory,
    "clean, shrinking noise": _clean_with_shrinking_noise,
    "clean, sequential order": _clean_and_sequential,
    "clean, short": _clean_and_short,
    "clean, cosine, no buckets": _clean_with_a_cosine_and_no_buckets,
}
CAUSES: dict[str, Callable[[int], Made]] = {
    **CLEAN,
    "levels, quota": lambda seed: _levels("quota", seed, {"levels"}),
    "levels, shuffle": lambda seed: _levels("shuffle", seed, {"levels"}),
    "levels, stride": lambda seed: _levels("stride", seed, {"levels"}),
    "levels, sequential": lambda seed: _levels("sequential", seed, {"levels", "order-wave"}),
    "levels, diversity-first": lambda seed: _levels("diversity-first", seed, {"levels", "order-wave"}),
    "six levels, quota": lambda seed: _levels("quota", seed, {"levels"}, (0.0, 0.5, 1.0, 1.5, 2.0, 2.5)),
    "overlapping buckets": _overlapping_buckets,
    "grouped by length": _grouped_by_length,
    "sequential over epochs": _sequential_over_epochs,
    "rhythm of something else": _rhythm_of_something_else,
    "rhythm of the learning rate": _rhythm_of_the_learning_rate,
    "jump": _jump,
    "spikes": _spikes,
    "plateau at the end": _plateau_at_the_end,
    "plateau in the middle": _plateau_in_the_middle,
    "never moved": _never_moved,
    "rising": _rising,
    "two kinds of samples": _two_kinds_of_samples,
    "stairs": _stairs,
    "not finite": _not_finite,
    "too short": _too_short,
    "levels and spikes": _levels_and_spikes,
    "levels and a jump": _levels_and_a_jump,
}
