"""A function that runs in a process of its own, for work that holds the interpreter's lock; used like the function.

The child is a fresh interpreter that reads pickled items from a pipe and writes pickled results to another. It never
imports the caller's main module, holds no pipe of its siblings, and ends when its pipe closes: so when its owner is
killed, it ends too. It ignores Ctrl-C, which is the owner's to handle.
"""

from __future__ import annotations

import gc
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import IO, Any, Generic, TypeVar

from draftsmith.errors import DraftsmithError, StageError

T = TypeVar("T")
U = TypeVar("U")
HEADER_BYTES = 8
CHILD = "from draftsmith.flow.processes import serve; serve()"


class ProcessWorker(Generic[T, U]):
    """`function` in another process; it must be picklable, and so must items and results. A context manager.

    Calling it raises what the function raised (DraftsmithErrors as they are), or StageError if the process has died.
    """

    def __init__(self, function: Callable[[T], U], *, environment: dict[str, str] | None = None) -> None:
        self._function = pickle.dumps(function, protocol=pickle.HIGHEST_PROTOCOL)
        path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
        self._environment = {**os.environ, "PYTHONPATH": path, **(environment or {})}

    def __enter__(self) -> ProcessWorker[T, U]:
        self._child = subprocess.Popen(
            [sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=self._environment
        )
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._to: IO[bytes] = self._child.stdin
        self._from: IO[bytes] = self._child.stdout
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for pipe in (self._to, self._from):
            try:
                pipe.close()
            except BrokenPipeError:
                continue
        if kind is not None:
            self._child.kill()
        self._child.wait()

    @property
    def pid(self) -> int:
        return self._child.pid

    def __call__(self, item: T) -> U:
        try:
            if self._function:
                _send(self._to, self._function)
                self._function = b""
            _send(self._to, pickle.dumps(item, protocol=pickle.HIGHEST_PROTOCOL))
            answer = _receive(self._from)
        except (BrokenPipeError, ConnectionResetError):
            answer = None
        if answer is None:
            code = self._child.wait()
            how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
            raise StageError(f"worker process {self.pid} {how}; if memory ran out, use fewer workers")
        result, failure = pickle.loads(answer)
        if failure is not None:
            raise failure
        return result  # type: ignore[no-any-return]


@contextmanager
def process_workers(
    function: Callable[[T], U], count: int, *, environment: dict[str, str] | None = None
) -> Iterator[Sequence[ProcessWorker[T, U]]]:
    """`count` processes, all of which have ended when the block is left."""
    with ExitStack() as stack:
        workers = [ProcessWorker(function, environment=environment) for _ in range(count)]
        yield [stack.enter_context(worker) for worker in workers]


def serve() -> None:
    """The child: the function first, then an answer for every item, until the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    source, sink = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever is printed goes to stderr, not between the answers
    first = _receive(source)
    function = pickle.loads(first) if first is not None else None
    gc.freeze()  # the function stays: looking through it for garbage again and again would only take time
    gc.set_threshold(50_000)
    while function is not None:
        item = _receive(source)
        if item is None:
            return
        try:
            answer = pickle.dumps((_answer(function, item)), protocol=pickle.HIGHEST_PROTOCOL)
            _send(sink, answer)
        except BrokenPipeError:
            return


def _answer(function: Callable[[Any], Any], item: bytes) -> tuple[Any, Exception | None]:
    try:
        return function(pickle.loads(item)), None
    except DraftsmithError as error:
        return None, error
    except Exception as error:  # the stage boundary, on this side of the pipe
        return None, StageError(f"{type(error).__name__}: {error}")


def _send(pipe: IO[bytes], message: bytes) -> None:
    pipe.write(len(message).to_bytes(HEADER_BYTES, "little"))
    pipe.write(message)
    pipe.flush()


def _receive(pipe: IO[bytes]) -> bytes | None:
    """The next message, None if the other side has closed."""
    header = pipe.read(HEADER_BYTES)
    if len(header) < HEADER_BYTES:
        return None
    size = int.from_bytes(header, "little")
    message = pipe.read(size)
    return message if len(message) == size else None
