"""Predicted rates of placements: the simple model, its limits, memory, and what is recommended."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftsmith.flow.predict import DeviceProbe, placements, predicted_rate, rate_together, recommendation

SECONDS = st.floats(1e-6, 1e-2)


def probe(
    device: str, target_s: float = 1e-4, drafter_s: float = 2e-4, *, size: int = 10, memory: int = 100
) -> DeviceProbe:
    return DeviceProbe(device, target_s, drafter_s, size, size, memory)


@given(target_s=SECONDS, drafter_s=SECONDS)
def test_one_device_does_both_one_after_the_other(target_s: float, drafter_s: float) -> None:
    only = probe("cpu", target_s, drafter_s)
    assert predicted_rate([only], only) == pytest.approx(1 / (target_s + drafter_s))
    assert predicted_rate([only] * 4, only) == pytest.approx(1 / (target_s + drafter_s)), "no speed from listing twice"


@given(target_s=SECONDS, drafter_s=SECONDS, num=st.integers(2, 8))
def test_equal_devices_never_give_more_than_all_of_them_colocated(target_s: float, drafter_s: float, num: int) -> None:
    devices = [probe(f"cuda:{index}", target_s, drafter_s) for index in range(num)]
    best = placements(devices, [device.device for device in devices], batch_bytes=1)[0]
    assert best.tokens_per_s <= num / (target_s + drafter_s) * (1 + 1e-9)
    assert best.tokens_per_s <= (1 + 1e-9) / drafter_s


def test_the_slower_side_of_a_split_decides() -> None:
    fast, slow = probe("cuda:0", 1e-4, 1e-4), probe("cuda:1", 4e-4, 3e-4)
    assert predicted_rate([slow], fast) == pytest.approx(2500)
    assert predicted_rate([fast], slow) == pytest.approx(1 / 3e-4)
    assert predicted_rate([fast, slow], slow) == pytest.approx(1 / 3e-4)


def test_every_split_of_the_listed_devices_is_there() -> None:
    devices = [probe("cuda:0"), probe("cuda:1"), probe("cuda:2")]
    names = {place.name for place in placements(devices, [d.device for d in devices], batch_bytes=1)}
    assert names == {"colocated", "split 1+1", "split 2+1", "split 3+1"}


def test_what_does_not_fit_comes_last_and_is_not_recommended() -> None:
    small, large = probe("cuda:0", 1e-5, 1e-5, size=60), probe("cuda:1", 1e-4, 1e-4, size=60, memory=1000)
    ordered = placements([small, large], ["cuda:0", "cuda:1"], batch_bytes=5)
    assert not next(place for place in ordered if place.target_devices == ("cuda:0",) == (place.drafter_device,)).fits
    fits = [place.fits for place in ordered]
    assert fits == sorted(fits, reverse=True)
    assert ordered[0].fits
    assert ordered[0].settings.split()[0] in recommendation(ordered)


def test_where_nothing_fits_the_way_out_is_named() -> None:
    ordered = placements([probe("cpu", memory=1)], ["cpu"], batch_bytes=5)
    assert "lower batching.max_tokens" in recommendation(ordered)


def test_of_equal_placements_the_cpu_gets_all_its_workers_and_a_gpu_one() -> None:
    assert placements([probe("cpu")], ["cpu"] * 4, batch_bytes=1)[0].target_devices == ("cpu",) * 4
    assert placements([probe("cuda:0")], ["cuda:0"] * 4, batch_bytes=1)[0].target_devices == ("cuda:0",)


@given(rate=st.floats(1, 1e6), num=st.integers(1, 64), step_tokens=st.floats(1, 1e7))
def test_equal_ranks_add_up_but_for_their_sums(rate: float, num: int, step_tokens: float) -> None:
    assert rate_together([rate] * num, step_tokens=step_tokens, sum_s=0) == pytest.approx(num * rate)
    as_long_as_the_rest = step_tokens / (num * rate)
    half = rate_together([rate] * num, step_tokens=step_tokens, sum_s=as_long_as_the_rest)
    assert half == pytest.approx(num * rate / 2)


def test_all_ranks_go_at_the_pace_of_the_slowest() -> None:
    assert rate_together([100, 50, 100], step_tokens=3000, sum_s=0) == pytest.approx(150)
