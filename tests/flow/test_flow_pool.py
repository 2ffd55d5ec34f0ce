"""`as_completed`: every item once, no more at a time than asked for, failures where they happened, no thread left."""

from __future__ import annotations

import threading
import time

import pytest

from draftsmith.flow import as_completed


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("pool/")]


def test_every_item_is_done_once_whatever_the_number_of_workers() -> None:
    for num_workers in (1, 3, 50):
        assert sorted(as_completed(lambda item: item * 2, range(40), num_workers=num_workers)) == list(range(0, 80, 2))
    assert list(as_completed(str, [], num_workers=4)) == []
    assert threads() == []


def test_a_slow_item_does_not_hold_up_the_others() -> None:
    go_on = threading.Event()

    def work(item: int) -> int:
        if item == 0:
            assert go_on.wait(10)
        return item

    found = as_completed(work, range(20), num_workers=2)
    first = [next(found) for _ in range(19)]
    assert sorted(first) == list(range(1, 20))
    go_on.set()
    assert list(found) == [0]


def test_no_more_items_are_under_way_than_there_are_workers() -> None:
    lock, now, most = threading.Lock(), 0, 0

    def work(_item: int) -> None:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        time.sleep(0.002)
        with lock:
            now -= 1

    list(as_completed(work, range(40), num_workers=4))
    assert most <= 4


def test_a_failure_comes_after_the_results_before_it_and_ends_everything() -> None:
    def work(item: int) -> int:
        if item == 3:
            raise KeyError("broken")
        return item

    got: list[int] = []
    with pytest.raises(KeyError, match="broken"):
        got.extend(as_completed(work, range(100), num_workers=1))
    assert threads() == []


def test_a_failure_of_the_items_themselves_is_raised_too() -> None:
    def items() -> object:
        yield 1
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        list(as_completed(str, items(), num_workers=2))  # type: ignore[arg-type]


def test_leaving_early_takes_no_more_items_and_does_not_wait_for_a_call_that_hangs() -> None:
    taken: list[int] = []
    release = threading.Event()

    def items() -> object:
        for item in range(1000):
            taken.append(item)
            yield item

    def work(item: int) -> int:
        if item == 1:
            release.wait(30)
        return item

    found = as_completed(work, items(), num_workers=2, stop_s=0.1)  # type: ignore[arg-type]
    assert next(found) in (0, 2)
    start = time.monotonic()
    found.close()  # type: ignore[attr-defined]
    assert time.monotonic() - start < 5
    assert len(taken) < 10
    release.set()


def test_no_workers_are_refused() -> None:
    with pytest.raises(ValueError, match="num_workers of pool is 0"):
        next(iter(as_completed(str, [1], num_workers=0)))
