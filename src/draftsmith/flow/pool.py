"""The same function over many items by several threads, results as they are done: for work whose order is no matter.

Unlike a pipeline it keeps no order and counts no bytes. It is for waiting on somebody else's machine, where one slow
answer must not hold up the others.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

OVER: Any = object()  # what a worker leaves when there are no more items
T = TypeVar("T")
U = TypeVar("U")


def as_completed(
    function: Callable[[T], U], items: Iterable[T], *, num_workers: int, stop_s: float = 2.0, name: str = "pool"
) -> Iterator[U]:
    """Yield function(item) of every item, at most `num_workers` under way, and as many waiting to be taken.

    What a call or the items raise is raised here, after all results that came before it. Leaving early hands out no
    more items and waits up to `stop_s` for calls under way; one that takes longer is left to itself, unheard.
    """
    if num_workers < 1:
        raise ValueError(f"num_workers of {name} is {num_workers}; it must be at least 1")
    results: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()
    source, lock, stopped = iter(items), threading.Lock(), threading.Event()
    room = threading.Semaphore(2 * num_workers)

    def live() -> None:
        try:
            while True:
                room.acquire()
                with lock:
                    item = OVER if stopped.is_set() else next(source, OVER)
                if item is OVER:
                    results.put((OVER, None))
                    return
                results.put((function(item), None))
        except BaseException as error:  # stage boundary
            results.put((None, error))

    threads = [threading.Thread(target=live, name=f"{name}/{i}", daemon=True) for i in range(num_workers)]
    for thread in threads:
        thread.start()
    num_alive = num_workers
    try:
        while num_alive:
            result, error = results.get()
            room.release()
            if error is not None:
                raise error
            if result is OVER:
                num_alive -= 1
            else:
                yield result
    finally:
        stopped.set()
        room.release(num_workers)
        deadline = time.monotonic() + stop_s
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
