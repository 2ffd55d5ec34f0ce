"""The ranks of one run: started together, ended together, none of them outlives us.

A rank is started with the environment that torchrun would give it; here as a process of this machine, in actors.py
elsewhere. The process reads one line of JSON from its standard input and then holds on to it: when we are gone, however
we ended, the input closes and the rank ends. What it answers at its end, one line of JSON, goes to its standard output;
whatever else it prints goes to standard error. The store through which ranks find each other listens on 127.0.0.1, and
so do their connections.
"""

from __future__ import annotations

import functools
import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, Protocol

from torch._C._distributed_c10d import Store, TCPStore

LOOPBACK = "127.0.0.1"
TOGETHER = {0, 128 + signal.SIGINT, 128 + signal.SIGTERM}  # all ranks do that after the same step
LEAVE_S = 60.0  # for the first rank to save, once another one has told what went wrong
TELL_S = 2.0  # for the others to tell what went wrong, once the first one has ended
LOOPBACK_INTERFACE = "lo" if sys.platform == "linux" else "lo0"


@dataclass(frozen=True)
class Ended:
    """How all ranks ended, in that order, and the signal that was handed on to them if there was one."""

    ranks: Sequence[RankEnd]
    signal: int | None


@dataclass(frozen=True)
class RankEnd:
    """How a rank ended. code: its exit code, minus the number of the signal that killed it. answer: what it said.

    lost: why it is gone, where that is known but no signal is.
    """

    rank: int
    code: int
    answer: Mapping[str, Any] | None
    lost: str = ""

    @property
    def how(self) -> str:
        by_signal = f"was killed by {signal.Signals(-self.code).name}" if self.code < 0 else ""
        return f"rank {self.rank} {self.lost or by_signal or f'ended with exit code {self.code}'}"


class Rank(Protocol):
    """A rank as its starter sees it."""

    def kill(self) -> None: ...

    def send_signal(self, number: int) -> None: ...


@dataclass(frozen=True)
class Meeting:
    """Where ranks find each other; it lives with their starter, so that it outlives any of them."""

    host: str
    port: int
    store: Store = field(repr=False)

    @staticmethod
    def opened(host: str) -> Meeting:
        """Listens on this address of this machine, at any port."""
        listening = socket.create_server((host, 0))
        port = int(listening.getsockname()[1])
        store = TCPStore(host, port, is_master=True, wait_for_workers=False, master_listen_fd=listening.detach())
        return Meeting(host, port, store)

    def environment(self, rank: int, num_ranks: int) -> dict[str, str]:
        """What torchrun would tell a rank, the places on its machine left out."""
        return {
            "RANK": str(rank),
            "WORLD_SIZE": str(num_ranks),
            "MASTER_ADDR": self.host,
            "MASTER_PORT": str(self.port),
            "TORCHELASTIC_USE_AGENT_STORE": "True",  # the store is not the first rank's to open
        }


Ends = queue.SimpleQueue[RankEnd]
# Starts one rank with an environment; its end is put into the queue. Leaving the context ends it.
Start = Callable[[int, Mapping[str, str], Ends], AbstractContextManager[Rank]]


def run_ranks(start: Start, num_ranks: int, *, meet: Meeting | None = None) -> Ended:
    """Run that many ranks until all have ended. meet: where they find each other; by default on this machine.

    When one was killed the others are killed too: they could only wait for it. When one ended with an error of its own
    the first rank has a minute to save. SIGINT and SIGTERM are handed on to every rank.
    """
    ends: Ends = queue.SimpleQueue()
    with ExitStack() as stack:
        meet = meet or Meeting.opened(LOOPBACK)
        ranks = [stack.enter_context(start(rank, meet.environment(rank, num_ranks), ends)) for rank in range(num_ranks)]
        with _handed_on(ranks) as received:
            ended = _until_all_ended(ranks, ends)
    return Ended(ended, received[0] if received else None)


def processes(command: Sequence[str], word: Mapping[str, Any]) -> Start:
    """Ranks that run `command` on this machine, with `word` on its input."""
    return functools.partial(_rank, command, word)


@contextmanager
def answering() -> Iterator[tuple[dict[str, Any], Callable[[Mapping[str, Any]], None]]]:
    """In a rank: the word it was started with, and how to answer. From here on it ends when its starter is gone."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever is printed goes to stderr, not between the answers
    word = json.loads(_first_line(0))
    threading.Thread(target=_end_with_input, name="leash", daemon=True).start()

    def answer(what: Mapping[str, Any]) -> None:
        answers.write(json.dumps(what) + "\n")
        answers.flush()

    yield word, answer
    answers.close()


@contextmanager
def _rank(
    command: Sequence[str],
    word: Mapping[str, Any],
    rank: int,
    environment: Mapping[str, str],
    ends: Ends,
) -> Iterator[subprocess.Popen[bytes]]:
    """A running rank. Leaving kills it if it has not ended."""
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, **environment, **_on_this_machine(environment)},
        start_new_session=True,  # Ctrl-C in a terminal is for us; we hand it on
    )
    waiting = threading.Thread(target=_wait_for, args=(process, rank, ends), name=f"rank {rank}", daemon=True)
    waiting.start()
    try:
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps(word).encode() + b"\n")
            process.stdin.flush()
        except BrokenPipeError:
            pass  # it has ended already, and will be reported as such
        yield process
    finally:
        process.kill()
        waiting.join()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            pipe.close()


def _on_this_machine(environment: Mapping[str, str]) -> dict[str, str]:
    return {
        "PYTHONPATH": os.pathsep.join(entry or os.getcwd() for entry in sys.path),
        "LOCAL_RANK": environment["RANK"],
        "LOCAL_WORLD_SIZE": environment["WORLD_SIZE"],
        "GLOO_SOCKET_IFNAME": LOOPBACK_INTERFACE,
        "NCCL_SOCKET_IFNAME": LOOPBACK_INTERFACE,
    }


def _wait_for(process: subprocess.Popen[bytes], rank: int, ends: Ends) -> None:
    assert process.stdout is not None
    said = process.stdout.read()
    code = process.wait()
    try:
        answer = json.loads(said.splitlines()[-1]) if said else None
    except ValueError:  # killed while it wrote
        answer = None
    ends.put(RankEnd(rank, code, answer))


def _until_all_ended(ranks: Sequence[Rank], ends: Ends) -> list[RankEnd]:
    ended: list[RankEnd] = []
    deadline: float | None = None
    while len(ended) < len(ranks):
        try:
            ended.append(ends.get(timeout=None if deadline is None else max(0.0, deadline - time.monotonic())))
        except queue.Empty:
            for rank in ranks:
                rank.kill()
            deadline = None
            continue
        if deadline is None and ended[-1].code not in TOGETHER:
            deadline = time.monotonic() + _patience(ended[-1])
    return ended


def _patience(end: RankEnd) -> float:
    if end.code < 0:
        return 0.0
    return TELL_S if end.rank == 0 else LEAVE_S


@contextmanager
def _handed_on(ranks: Sequence[Rank]) -> Iterator[list[int]]:
    """While active, what asks us to stop asks every rank; it is noted in what is yielded."""
    received: list[int] = []

    def hand_on(number: int, _frame: FrameType | None) -> None:
        received.append(number)
        for rank in ranks:
            rank.send_signal(number)

    before = {number: signal.signal(number, hand_on) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _first_line(file: int) -> bytes:
    """Byte by byte: what follows belongs to the leash."""
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(file, 1)
        if not byte:
            break
        line += byte
    return line


def _end_with_input() -> None:
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGKILL)
