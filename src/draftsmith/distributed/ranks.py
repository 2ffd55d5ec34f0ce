"""Processes of one run on this machine: started together, ended together, none of them outlives us.

A rank is started with the environment that torchrun would give it. It reads one line of JSON from its standard input
and then holds on to it: when we are gone, however we ended, the input closes and the rank ends. What it answers at its
end, one line of JSON, goes to its standard output; whatever else it prints goes to standard error. The store through
which ranks find each other listens on 127.0.0.1, and so do their connections.
"""

from __future__ import annotations

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
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

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
    """How a rank ended. code: its exit code, minus the number of the signal that killed it. answer: what it said."""

    rank: int
    code: int
    answer: Mapping[str, Any] | None

    @property
    def how(self) -> str:
        by_signal = f"was killed by {signal.Signals(-self.code).name}" if self.code < 0 else ""
        return f"rank {self.rank} {by_signal or f'ended with exit code {self.code}'}"


def run_ranks(command: Sequence[str], word: Mapping[str, Any], num_ranks: int) -> Ended:
    """Run `command` once per rank, with `word` on its input, until all have ended.

    When one was killed the others are killed too: they could only wait for it. When one ended with an error of its own
    the first rank has a minute to save. SIGINT and SIGTERM are handed on to every rank.
    """
    ends: queue.SimpleQueue[RankEnd] = queue.SimpleQueue()
    with ExitStack() as stack:
        store, port = _open_store()
        ranks = [
            stack.enter_context(_rank(command, word, _environment(rank, num_ranks, port), rank, ends))
            for rank in range(num_ranks)
        ]
        with _handed_on(ranks) as received:
            ended = _until_all_ended(ranks, ends)
        del store
    return Ended(ended, received[0] if received else None)


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


def _open_store() -> tuple[Store, int]:
    """Where ranks find each other; it lives here, so that it outlives any of them."""
    listening = socket.create_server((LOOPBACK, 0))
    port = int(listening.getsockname()[1])
    return TCPStore(LOOPBACK, port, is_master=True, wait_for_workers=False, master_listen_fd=listening.detach()), port


def _environment(rank: int, num_ranks: int, port: int) -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(entry or os.getcwd() for entry in sys.path),
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(num_ranks),
        "LOCAL_WORLD_SIZE": str(num_ranks),
        "MASTER_ADDR": LOOPBACK,
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",  # the store is not the first rank's to open
        "GLOO_SOCKET_IFNAME": LOOPBACK_INTERFACE,
        "NCCL_SOCKET_IFNAME": LOOPBACK_INTERFACE,
    }


@contextmanager
def _rank(
    command: Sequence[str],
    word: Mapping[str, Any],
    environment: Mapping[str, str],
    rank: int,
    ends: queue.SimpleQueue[RankEnd],
) -> Iterator[subprocess.Popen[bytes]]:
    """A running rank. Leaving kills it if it has not ended."""
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=dict(environment),
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


def _wait_for(process: subprocess.Popen[bytes], rank: int, ends: queue.SimpleQueue[RankEnd]) -> None:
    assert process.stdout is not None
    said = process.stdout.read()
    code = process.wait()
    try:
        answer = json.loads(said.splitlines()[-1]) if said else None
    except ValueError:  # killed while it wrote
        answer = None
    ends.put(RankEnd(rank, code, answer))


def _until_all_ended(ranks: Sequence[subprocess.Popen[bytes]], ends: queue.SimpleQueue[RankEnd]) -> list[RankEnd]:
    ended: list[RankEnd] = []
    deadline: float | None = None
    while len(ended) < len(ranks):
        try:
            ended.append(ends.get(timeout=None if deadline is None else max(0.0, deadline - time.monotonic())))
        except queue.Empty:
            for process in ranks:
                process.kill()
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
def _handed_on(ranks: Sequence[subprocess.Popen[bytes]]) -> Iterator[list[int]]:
    """While active, what asks us to stop asks every rank; it is noted in what is yielded."""
    received: list[int] = []

    def hand_on(number: int, _frame: FrameType | None) -> None:
        received.append(number)
        for process in ranks:
            process.send_signal(number)

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
