"""Curves with known causes get their names and no other; curves with none get none."""

from __future__ import annotations

import numpy as np
import pytest
from curves_with_causes import CAUSES, CLEAN, LENGTH, LEVELS, curve_of, falling, noise, ordered

from draftsmith.report.diagnosis import diagnose
from draftsmith.report.diagnosis.decompose import decompose
from draftsmith.report.diagnosis.words import paragraph
from draftsmith.report.explain import drawn


@pytest.mark.parametrize("name", CAUSES)
@pytest.mark.parametrize("seed", [0, 1])
def test_every_curve_is_given_its_cause_and_nothing_else(name: str, seed: int) -> None:
    curve, expected = CAUSES[name](seed)
    assert set(diagnose(curve).codes) == expected


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", CLEAN)
def test_two_hundred_clean_curves_raise_no_alarm(name: str) -> None:
    alarms = {seed: codes for seed in range(200) if (codes := diagnose(CAUSES[name](seed)[0]).codes)}
    assert not alarms


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", CAUSES.keys() - CLEAN.keys())
def test_forty_curves_of_every_cause_are_named_rightly(name: str) -> None:
    misnamed = {}
    for seed in range(40):
        curve, expected = CAUSES[name](seed)
        if set(diagnose(curve).codes) != expected:
            misnamed[seed] = diagnose(curve).codes
    assert not misnamed


@pytest.mark.parametrize("policy", ["quota", "shuffle", "sequential", "diversity-first"])
def test_the_parts_are_those_that_the_curve_was_made_of(policy: str) -> None:
    """Also where an order keeps each bucket in one stretch, so that only the borders tell trend and buckets apart."""
    bucket = ordered(policy, 0)
    loss = falling() + np.array(LEVELS)[bucket] + noise(np.random.default_rng(0))
    parts = decompose(loss, bucket, len(LEVELS))
    assert np.allclose(parts.trend + parts.effect + parts.rest, loss)
    found, true = parts.effects - parts.effects[0], np.array(LEVELS) - LEVELS[0]
    assert np.abs(found - true).max() < (0.2 if policy == "sequential" else 0.03)
    assert parts.sigma == pytest.approx(0.08, rel=0.1)
    late = slice(LENGTH // 10, None)
    assert np.abs((parts.trend - falling())[late] - np.median((parts.trend - falling())[late])).max() < 0.2


def test_the_paragraph_names_levels_their_buckets_and_the_waves_of_the_order() -> None:
    curve, _ = CAUSES["levels, sequential"](0)
    text = paragraph(diagnose(curve))
    assert "three levels" in text
    assert "buckets 0-1 (" in text
    assert "buckets 2-3 (" in text
    assert "buckets 4-5 (" in text
    assert "batching.order=quota" in text


def test_the_paragraph_names_the_period_and_who_is_not_to_blame() -> None:
    assert "period of 64 batches, and the order of the buckets does not explain it" in paragraph(
        diagnose(CAUSES["rhythm of something else"](1)[0])
    )
    assert "every 50 batches" in paragraph(diagnose(CAUSES["grouped by length"](1)[0]))


def test_places_are_named_by_the_step() -> None:
    curve, _ = CAUSES["jump"](7)
    found = diagnose(curve)
    assert abs(found.step(found.jumps[0]) - 1208) <= 2
    restarted = curve_of(curve.loss, curve.bucket, restarts=(1207,))
    assert "where the run was resumed" in paragraph(diagnose(restarted))


def test_a_clean_curve_is_said_to_be_clean() -> None:
    text = paragraph(diagnose(CAUSES["clean"](0)[0]))
    assert "and nothing else" in text
    assert "nothing is wrong" in text


@pytest.mark.parametrize("total", [0, 1, 2, 39, 40, 41, 65, 100])
@pytest.mark.parametrize("kind", ["constant", "falling", "not finite", "alternating", "huge"])
def test_no_curve_is_too_odd_for_a_paragraph(total: int, kind: str) -> None:
    losses = {
        "constant": np.full(total, 2.0),
        "falling": falling(total),
        "not finite": np.where(np.arange(total) % 7 == 3, np.inf, 1.0),
        "alternating": (np.arange(total) % 2).astype(np.float64),
        "huge": 1e30 * (1 + noise(np.random.default_rng(0), total)),
    }
    found = diagnose(curve_of(losses[kind], np.arange(total) % 3))
    assert paragraph(found)
    drawn(found)
