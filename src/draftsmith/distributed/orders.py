"""What a driver and its ranks tell each other while these train: signals one way, printed lines the other.

Both go through the store in which ranks find each other, not through Ray: that is at once, works while a rank computes,
loses no last line, and tells a rank when the driver is gone.
"""

from __future__ import annotations

import io
import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta

from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

from draftsmith.distributed.ranks import Meeting

LONG = timedelta(days=365)
HUSH = b"\0"


@contextmanager
def heard(meet: Meeting) -> Iterator[None]:
    """In the driver: what ranks print is printed here."""
    lines = _connected(meet.host, meet.port)
    printing = threading.Thread(target=_print, args=(lines,), name="heard", daemon=True)
    printing.start()
    try:
        yield
    finally:
        PrefixStore("orders", meet.store).queue_push("lines", HUSH)
        printing.join()


def order(meet: Meeting, rank: int, number: int) -> None:
    """In the driver: have a rank receive a signal."""
    PrefixStore("orders", meet.store).queue_push(f"signals of {rank}", str(number))


@contextmanager
def obeying(environment: Mapping[str, str]) -> Iterator[None]:
    """In a rank: its main thread gets the driver's signals, it prints where the driver does, and it ends with it."""
    host, port = environment["MASTER_ADDR"], int(environment["MASTER_PORT"])
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # Ray starts its processes with it blocked
    leash = threading.Thread(
        target=_obey, args=(_connected(host, port), environment["RANK"]), name="leash", daemon=True
    )
    leash.start()
    before = sys.stdout, sys.stderr
    sys.stdout = sys.stderr = Spoken(_connected(host, port))
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


class Spoken(io.TextIOBase):
    """A text stream whose lines are sent to the driver."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._rest = ""
        self._lock = threading.Lock()

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        with self._lock:
            *lines, self._rest = (self._rest + text).split("\n")
            for line in lines:
                with suppress(RuntimeError):  # the driver is gone, and the leash sees to that
                    self._store.queue_push("lines", line)
        return len(text)


def _connected(host: str, port: int) -> Store:
    """A connection of its own: one that waits keeps it to itself."""
    store = PrefixStore("orders", TCPStore(host, port, is_master=False))
    store.set_timeout(LONG)
    return store


def _print(lines: Store) -> None:
    while (line := lines.queue_pop("lines")) != HUSH:
        print(line.decode(errors="replace"), file=sys.stderr, flush=True)


def _obey(signals: Store, rank: str) -> None:
    main = threading.main_thread().ident
    assert main is not None
    while True:
        try:
            number = int(signals.queue_pop(f"signals of {rank}"))
        except RuntimeError:
            os.kill(os.getpid(), signal.SIGKILL)
        signal.pthread_kill(main, number)
