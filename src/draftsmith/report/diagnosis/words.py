"""A diagnosis in one paragraph, with one recommendation at its end."""

from __future__ import annotations

import numpy as np

from draftsmith.report.diagnosis.diagnose import Diagnosis

COUNTS = {2: "two", 3: "three", 4: "four", 5: "five", 6: "six", 7: "seven", 8: "eight"}


def paragraph(found: Diagnosis) -> str:
    """What makes the curve look as it does, the most important first, and what to do."""
    if found.parts is None:
        return _too_short(found)
    sentences = [
        *_not_finite(found),
        *_rising(found),
        *_jumps(found),
        *_stairs(found),
        *_levels(found),
        *_wave(found),
        *_rhythm(found),
        *_modes(found),
        *_spikes(found),
        *_plateau(found),
        *_noise(found),
    ]
    return " ".join([*sentences, recommendation(found)])


def recommendation(found: Diagnosis) -> str:
    """The one thing to do, for the most important finding."""
    codes = set(found.codes)
    for code, advice in _ADVICE.items():
        if code in codes:
            return f"Recommendation: {advice}"
    if codes & {"levels", "bucket-effect"}:
        return (
            "Recommendation: nothing is wrong; compare each bucket's own curve, or means over at least "
            f"{steps_to_average(found):,} batches, which are accurate to 1 %."
        )
    return f"Recommendation: nothing is wrong; a mean over {steps_to_average(found):,} batches is accurate to 1 %."


_ADVICE = {
    "not-finite": "look at the samples of these steps, and lower train.lr or train.clip_norm.",
    "rising": "lower train.lr, and go on from a checkpoint before the rise.",
    "never-moved": "check that the loss mask is not empty and that train.lr is not 0.",
    "jump": "look at what happened there; after a restart, check that the optimiser's state came back.",
    "order-wave": "train with batching.order=quota, which mixes buckets evenly: no waves of this kind.",
    "stairs": "more data or fewer epochs; held-out acceptance says whether the falls are worth anything.",
    "lr-rhythm": "nothing to mend if the schedule is meant to swing; judge the run at equal phases of it.",
    "rhythm": "look for what comes back with this period: the order of the source files, evaluation, saving.",
    "modes": "find the two kinds of samples, for instance by source or language, and follow each by itself.",
    "spikes": "look at the samples of these steps; train.clip_norm bounds what they can do.",
    "plateau": "stop here, or change something: more data, another learning rate, a larger drafter.",
}


def steps_to_average(found: Diagnosis) -> int:
    """Batches whose mean is accurate to 1 % of the loss, buckets and noise together."""
    assert found.parts is not None
    late = slice(len(found.parts.trend) * 3 // 4, None)
    level = max(abs(float(np.median(found.parts.trend[late]))), 1e-12)
    around = float(np.std((found.parts.effect + found.parts.rest)[late]))
    return max(1, int(np.ceil((around / (0.01 * level)) ** 2)))


def _too_short(found: Diagnosis) -> str:
    total = len(found.curve.loss)
    broken = f"; {found.num_not_finite:,} of them are not finite" if found.num_not_finite else ""
    return f"{total:,} losses are too few to say what shapes the curve{broken}."


def _not_finite(found: Diagnosis) -> list[str]:
    if not found.num_not_finite:
        return []
    places = np.setdiff1d(np.arange(len(found.curve.loss)), found.index)
    return [f"{found.num_not_finite:,} losses are not finite, the first at step {int(found.curve.x[places[0]]):,}."]


def _rising(found: Diagnosis) -> list[str]:
    if found.rises_from is None or found.parts is None:
        return []
    rise = found.parts.trend[-1] - found.parts.trend[found.rises_from]
    return [f"The loss was lowest around step {found.step(found.rises_from):,} and has risen by {rise:.3g} since."]


def _jumps(found: Diagnosis) -> list[str]:
    if not found.jumps:
        return []
    near = max(5, len(found.index) // 200)
    at_restart = [
        place for place in found.jumps if any(abs(int(found.index[place]) - r) <= near for r in found.curve.restarts)
    ]
    why = ", where the run was resumed" if at_restart else ", without a change of buckets"
    where = _listed([f"{found.step(place):,}" for place in found.jumps])
    return [f"The loss jumps up at step {where}{why}."]


def _stairs(found: Diagnosis) -> list[str]:
    if found.stairs is None:
        return []
    return [f"It falls by about {found.stairs:.2g} as each epoch begins: samples are recognised, as in memorising."]


def _levels(found: Diagnosis) -> list[str]:
    effect = found.effect
    if effect is None:
        return []
    share = f"buckets account for {effect.share:.0%} of its variation around the trend"
    if len(effect.groups) == 1:
        return [f"Losses of the buckets differ by up to {effect.spread:.2g} and run into each other: {share}."]
    count = COUNTS.get(len(effect.groups), str(len(effect.groups)))
    named = ", ".join(f"{_buckets(g)} ({level:+.2g})" for g, level in zip(effect.groups, effect.levels, strict=True))
    return [f"The loss stands on {count} levels, which are those of the length buckets: {named}; {share}."]


def _wave(found: Diagnosis) -> list[str]:
    wave = found.wave
    if wave is None:
        return []
    policy = f" ({found.curve.policy})" if found.curve.policy else ""
    start, length, bucket = wave.run
    last = start + length == len(found.index)
    stretch = (
        f"the longest stretch of one bucket is {length:,} batches of bucket {bucket} from step {found.step(start):,}"
    )
    if last:
        stretch += ", to the end"
    period = ""
    if found.rhythm is not None and found.rhythm.cause == "buckets":
        period = f" every {found.rhythm.period:,.0f} batches"
    return [
        f"The order of the batches{policy} makes waves of ±{wave.height:.2g}{period} in the smoothed curve, "
        f"{wave.clumping:.1f} times those of a shuffle; {stretch}. They say nothing about learning."
    ]


def _rhythm(found: Diagnosis) -> list[str]:
    rhythm = found.rhythm
    if rhythm is None or rhythm.cause == "buckets":
        return []
    because = "as the learning rate does" if rhythm.cause else "and the order of the buckets does not explain it"
    return [f"It swings with a period of {rhythm.period:,.0f} batches, {because}."]


def _modes(found: Diagnosis) -> list[str]:
    if found.modes is None:
        return []
    return [f"It goes back and forth between two levels {found.modes:.2g} apart that no bucket explains."]


def _spikes(found: Diagnosis) -> list[str]:
    if not found.spikes:
        return []
    count = len(found.spikes)
    where = _listed([f"{found.step(place):,}" for place in found.spikes])
    return [f"{count:,} {'spike stands' if count == 1 else 'spikes stand'} out of the noise, at step {where}."]


def _plateau(found: Diagnosis) -> list[str]:
    flat = found.plateau
    if flat is None:
        return []
    if flat.kind == "start":
        return ["The loss has not moved since the beginning."]
    if flat.kind == "end":
        return [f"It has not fallen since about step {found.step(flat.first):,}."]
    return [
        f"It did not move between about steps {found.step(flat.first):,} and {found.step(flat.last):,}, then fell on."
    ]


def _noise(found: Diagnosis) -> list[str]:
    assert found.parts is not None
    late = float(np.median(found.parts.scale[len(found.parts.scale) * 3 // 4 :]))
    if not found.codes:
        return [f"The curve is a trend with noise of ±{late:.2g} from batch to batch, and nothing else."]
    return [f"The rest is noise of ±{late:.2g}."]


def _buckets(group: tuple[int, ...]) -> str:
    """Buckets of a level: "bucket 3", "buckets 0-1", "buckets 0, 2"."""
    if len(group) == 1:
        return f"bucket {group[0]}"
    if group[-1] - group[0] == len(group) - 1:
        return f"buckets {group[0]}-{group[-1]}"
    return f"buckets {', '.join(map(str, group))}"


def _listed(names: list[str], limit: int = 5) -> str:
    if len(names) > limit:
        return f"{', '.join(names[:limit])} and {len(names) - limit:,} more"
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
