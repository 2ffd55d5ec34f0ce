"""Work that nobody waits for: in order when all is well, and never in the way when it is not."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from draftsmith.flow import BestEffort

Handle = Callable[[int], None]
SOON_S = 10.0


@contextmanager
def opened(handle: Handle, log: list[str] | None = None) -> Iterator[Handle]:
    try:
        yield handle
    finally:
        if log is not None:
            log.append("closed")


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """Whatever hangs at it is let go at the end, so that no thread outlives its test."""
    event = threading.Event()
    yield event
    event.set()


def wait_for(condition: Callable[[], object]) -> None:
    end = time.monotonic() + SOON_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


def test_items_arrive_in_order_and_closing_waits_for_all_of_them() -> None:
    seen: list[int] = []
    log: list[str] = []
    worker = BestEffort("x", opened(seen.append, log), max_items=1000)
    for item in range(500):
        worker.offer(item)
    worker.close(SOON_S)
    assert seen == list(range(500))
    assert log == ["closed"]
    assert worker.trouble() is None
    worker.offer(1)  # too late, and nobody minds
    assert len(seen) == 500


@pytest.mark.parametrize("error", [RuntimeError("disk\nfull"), KeyboardInterrupt(), SystemExit(3)])
def test_one_that_raises_is_dropped_and_says_so_once(error: BaseException) -> None:
    calls: list[int] = []
    log: list[str] = []

    def handle(item: int) -> None:
        calls.append(item)
        raise error

    worker = BestEffort("x", opened(handle, log))
    worker.offer(0)
    wait_for(lambda: log)
    worker.close(SOON_S)
    for item in range(5):
        worker.offer(item)
    trouble = worker.trouble()
    assert trouble is not None
    assert f"failed ({type(error).__name__}" in trouble
    assert "\n" not in trouble
    assert worker.trouble() is None
    assert calls == [0]


def test_one_that_cannot_be_opened_is_dropped_and_says_why() -> None:
    @contextmanager
    def broken() -> Iterator[Handle]:
        raise ImportError("no module named sink")
        yield

    worker = BestEffort("x", broken())
    worker.close(SOON_S)
    assert worker.trouble() == "failed (ImportError: no module named sink); it gets nothing more"


def test_one_that_hangs_is_dropped_after_its_patience_and_offering_never_waits(gate: threading.Event) -> None:
    now = [0.0]
    worker = BestEffort("x", opened(lambda _item: gate.wait()), patience_s=60.0, clock=lambda: now[0])  # type: ignore[arg-type,return-value]
    start = time.monotonic()
    worker.offer(0)
    wait_for(lambda: not worker._items)
    for step in range(100):
        now[0] = float(step)
        worker.offer(step)
    assert worker.trouble() == "has not returned for 60 s; it gets nothing more"
    assert not worker._items
    assert time.monotonic() - start < SOON_S


def test_opening_that_hangs_counts_as_hanging(gate: threading.Event) -> None:
    @contextmanager
    def slow() -> Iterator[Handle]:
        gate.wait()
        yield lambda _item: None

    now = [0.0]
    worker = BestEffort("x", slow(), patience_s=60.0, clock=lambda: now[0])
    worker.offer(0)
    now[0] = 61.0
    worker.offer(1)
    assert worker.trouble() is not None


def test_one_that_is_slow_gets_what_fits_and_warns_once(gate: threading.Event) -> None:
    seen: list[int] = []

    def handle(item: int) -> None:
        gate.wait()
        seen.append(item)

    worker = BestEffort("x", opened(handle), max_items=10)
    worker.offer(0)
    wait_for(lambda: not worker._items)  # it holds item 0 now
    for item in range(1, 101):
        worker.offer(item)
    assert worker.num_left_out == 90
    trouble = worker.trouble()
    assert trouble is not None
    assert "cannot keep up" in trouble
    assert worker.trouble() is None
    gate.set()
    worker.close(SOON_S)
    assert seen == list(range(11))


def test_closing_never_waits_longer_than_its_deadline(gate: threading.Event) -> None:
    worker = BestEffort("x", opened(lambda _item: gate.wait()))  # type: ignore[arg-type,return-value]
    for item in range(3):
        worker.offer(item)
    start = time.monotonic()
    worker.close(0.05)
    assert time.monotonic() - start < SOON_S / 2
    assert "did not end within 0.05 s" in str(worker.trouble())
    again = time.monotonic()
    worker.close(-1.0)  # a deadline that has passed
    assert time.monotonic() - again < SOON_S / 2


def test_no_thread_is_left_and_none_can_keep_the_process_alive(gate: threading.Event) -> None:
    worker = BestEffort("x", opened(lambda _item: None))
    assert worker._thread in threading.enumerate()
    worker.close(SOON_S)
    assert worker._thread not in threading.enumerate()
    stuck = BestEffort("y", opened(lambda _item: gate.wait()))  # type: ignore[arg-type,return-value]
    stuck.offer(1)
    stuck.close(0.01)
    assert stuck._thread.daemon
