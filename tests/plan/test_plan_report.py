"""What a person and a program read: the audit against slow obvious versions, the JSON, the verdict, the pictures."""

from __future__ import annotations

import importlib.util
import json
from itertools import groupby, pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_vectors import LENGTHS, PRODUCTION

from draftsmith.errors import PlanError
from draftsmith.plan import POLICIES, PlanSettings, audit_order
from draftsmith.plan.plots import write_plot
from draftsmith.plan.report import plan_report

POLICY_KEYS = {
    "max_drift",
    "longest_run",
    "min_longest_run",
    "adjacent_repeats",
    "min_adjacent_repeats",
    "tail",
    "exhaustion",
    "early_rate",
    "mean_run",
    "windows",
    "seconds",
    "order_sha256",
    "certificate",
}


@given(buckets=st.lists(st.integers(0, 4), min_size=1, max_size=60))
@settings(max_examples=80, deadline=None)
def test_the_audit_agrees_with_counting_by_hand(buckets: list[int]) -> None:
    counts = [buckets.count(bucket) for bucket in range(5)]
    audit = audit_order(np.array(buckets, dtype=np.uint8), counts, windows=[8])
    total = len(buckets)
    drifts = [
        abs(step * counts[bucket] / total - buckets[:step].count(bucket))
        for step in range(1, total + 1)
        for bucket in range(5)
    ]
    runs = [(bucket, len(list(group))) for bucket, group in groupby(buckets)]
    assert audit.max_drift == pytest.approx(max(drifts))
    assert drifts[(audit.drift_step - 1) * 5 + audit.drift_bucket] == pytest.approx(max(drifts))
    assert audit.longest_run == max(length for _, length in runs)
    assert audit.tail == runs[-1][1]
    assert audit.adjacent_repeats == sum(a == b for a, b in pairwise(buckets))
    for bucket, count in enumerate(counts):
        own = [length for kind, length in runs if kind == bucket]
        assert audit.mean_run[bucket] == pytest.approx(np.mean(own) if own else 0)
        if count:
            assert audit.first[bucket] == buckets.index(bucket)
            assert audit.exhaustion[bucket] == (total - buckets[::-1].index(bucket)) / total
    if total >= 8:
        windows = [
            abs(buckets[at : at + 8].count(bucket) - 8 * counts[bucket] / total)
            for at in range(total - 7)
            for bucket in range(5)
        ]
        assert audit.windows[8] == pytest.approx(max(windows))
    assert audit.is_complete


def test_the_audit_notices_a_missing_batch() -> None:
    assert not audit_order(np.array([0, 1, 1], dtype=np.uint8), [2, 1]).is_complete


def test_a_period_shows_in_autocorrelation_and_spectrum() -> None:
    periodic = np.tile(np.arange(8, dtype=np.uint8), 100)
    audit = audit_order(periodic, [100] * 8)
    assert audit.autocorrelation[7] == pytest.approx(1)
    noise = audit_order(POLICIES["shuffle"]([100] * 8, 1).sequence, [100] * 8)
    assert audit.spectral_peak > 5 * noise.spectral_peak
    assert max(map(abs, noise.autocorrelation)) < 0.2


def test_the_record_has_the_documented_keys_and_is_json() -> None:
    report = plan_report(counts=PRODUCTION, policies=list(POLICIES), world_size=4, grad_accum=2, seed=1)
    record = json.loads(json.dumps(report.record))
    assert set(record) == {"counts", "policies", "ranks"}
    assert record["counts"] == list(PRODUCTION)
    assert set(record["policies"]) == set(POLICIES)
    for policy in record["policies"].values():
        assert set(policy) == POLICY_KEYS
        assert {"8", "32", "4", "2"} == set(policy["windows"])
        assert len(policy["exhaustion"]) == len(policy["early_rate"]) == len(policy["mean_run"]) == 6
    assert [rank["rank"] for rank in record["ranks"]] == [0, 1, 2, 3]
    assert set(record["ranks"][0]) == {"rank", "steps", "max_drift", "adjacent_repeats", "longest_run"}
    assert {rank["steps"] for rank in record["ranks"]} == {sum(PRODUCTION) // 8 * 2}


def test_the_verdict_says_in_plain_words_what_to_do() -> None:
    verdicts = {each.policy: each.verdict for each in plan_report(counts=PRODUCTION, policies=list(POLICIES)).policies}
    assert verdicts["quota"].grade == verdicts["quota-nominal"].grade == "good"
    assert verdicts["quota"].text.endswith("no bucket comes twice in a row; train with this order.")
    assert {verdicts[name].grade for name in ("shuffle", "weighted", "stride")} == {"fair"}
    assert {verdicts[name].grade for name in ("diversity-first", "sequential", "soft-anti-repeat")} == {"bad"}
    text = verdicts["diversity-first"].text
    assert "is exhausted at 9" in text
    assert "batches all come from bucket 5: do not train with this order." in text


def test_a_report_on_lengths_shows_buckets_ranks_and_what_was_truncated() -> None:
    lengths = [*LENGTHS.tolist(), 9000, 9001]
    report = plan_report(lengths=lengths, settings=PlanSettings(max_tokens=4096), world_size=3)
    assert "2 samples truncated to 4096 tokens" in report.text
    assert "unused budget" in report.text
    assert "certificate of quota: within 0.99" in report.text
    assert report.text.splitlines()[-1].startswith("quota: ")


def test_one_bucket_has_nothing_to_mix() -> None:
    report = plan_report(counts=[9])
    assert "there is only one bucket, so there is nothing to mix" in report.text


def test_pictures_are_self_contained(tmp_path: Path) -> None:
    report = plan_report(counts=[20, 30, 50], policies=["quota", "diversity-first"])
    page, drawing = tmp_path / "plan.html", tmp_path / "plan.svg"
    write_plot(report, page)
    write_plot(report, drawing)
    text = page.read_text(encoding="utf-8")
    assert text.count("<svg") == 1
    assert "<script" not in text
    assert text.count("http") == 1  # the name space of SVG
    assert "diversity-first" in drawing.read_text(encoding="utf-8")


def test_a_png_needs_matplotlib_and_says_so(tmp_path: Path) -> None:
    report = plan_report(counts=[20, 30])
    path = tmp_path / "plan.png"
    if importlib.util.find_spec("matplotlib") is None:
        with pytest.raises(PlanError, match=r"install draftsmith\[plot\]"):
            write_plot(report, path)
        return
    write_plot(report, path)
    assert path.read_bytes().startswith(b"\x89PNG")


def test_an_unknown_kind_of_picture_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"ends with '.gif'"):
        write_plot(plan_report(counts=[2, 3]), tmp_path / "plan.gif")


@pytest.mark.parametrize(
    ("counts", "policy"), [((8, 1000), "sequential"), ((1000, 8), "diversity-first"), ((100000, 5), "diversity-first")]
)
def test_a_rare_bucket_that_runs_out_early_is_not_called_fair(counts: tuple[int, ...], policy: str) -> None:
    report = plan_report(counts=counts, policies=[policy])
    assert report.policies[0].verdict.grade == "bad", report.policies[0].verdict.text
    for fair in ("quota", "shuffle"):
        assert plan_report(counts=counts, policies=[fair]).policies[0].verdict.grade != "bad"
