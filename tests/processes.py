"""Real `draftsmith` processes, each a process group of its own, to be hit from outside.

They come from a fork server that has imported the heavy libraries, so that a start costs half a second; or the
interpreter is executed anew. Either way it is the command line that runs, and what hits it knows nothing of its inside.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

COMMAND = "import sys; from draftsmith.cli import main; main()"
TIMEOUT_S = 300.0


class Training:
    """A process group that runs the command line; output goes to a file."""

    def __init__(self, arguments: Sequence[object], output: Path) -> None:
        self.output = output
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["draftsmith.run.starting", "processes"])
        self._child = context.Process(target=_command_line, args=([str(each) for each in arguments], str(output)))
        self._child.start()
        self.pid = self._child.pid or 0

    def wait(self, timeout_s: float = TIMEOUT_S) -> int | None:
        """Exit code as a shell gives it, or None while it runs."""
        self._child.join(timeout_s)
        code = self._child.exitcode
        return None if code is None else 128 - code if code < 0 else code

    def send(self, number: signal.Signals) -> None:
        """To the whole group, as a terminal or a container does."""
        try:
            os.killpg(self.pid, number)
        except ProcessLookupError:  # it has ended, or has not come so far as to make its group
            if self._child.is_alive():
                os.kill(self.pid, number)

    @property
    def said(self) -> str:
        return self.output.read_text(encoding="utf-8", errors="replace") if self.output.exists() else ""


class Executed(Training):
    """The same by executing the interpreter anew."""

    def __init__(self, arguments: Sequence[object], output: Path, env: Mapping[str, str] | None = None) -> None:
        self.output = output
        with output.open("w", encoding="utf-8") as file:
            self._process = subprocess.Popen(
                [sys.executable, "-c", COMMAND, *map(str, arguments)],
                stdout=file,
                stderr=file,
                start_new_session=True,
                env={**os.environ, **(env or {})},
            )
        self.pid = self._process.pid

    def wait(self, timeout_s: float = TIMEOUT_S) -> int | None:
        try:
            code = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None
        return 128 - code if code < 0 else code

    def send(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)


def _command_line(arguments: list[str], output: str) -> None:
    """What the forked child does."""
    os.setsid()
    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(file, 1)
    os.dup2(file, 2)
    sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", closefd=False)
    if limit := os.environ.get("CHAOS_MAX_FILE_BYTES"):
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit), int(limit)))
    from draftsmith.cli import main

    sys.argv = ["draftsmith", *arguments]
    main()
