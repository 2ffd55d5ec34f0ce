"""A foreign program beside ours: what it prints goes to a file, and it never outlives us.

It runs on a leash (leash.py): closing our end of a pipe ends it, and the operating system closes that end for us
even when we are killed.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

LEASH = Path(__file__).with_name("leash.py")
END_S = 30.0


class Program:
    """A program that was started; `log` is the file that holds what it printed."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.log = log
        self._process = process

    def exit_code(self) -> int | None:
        """None while it runs; 128 + n if signal n ended it."""
        return self._process.poll()

    def wait(self, timeout_s: float) -> int | None:
        """Its exit code, or None if it still runs after `timeout_s`."""
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def printed(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")

    def last_words(self, num_lines: int = 4) -> str:
        """The end of what it printed, on one line."""
        lines = [line.strip() for line in self.printed().splitlines() if line.strip()]
        return " | ".join(lines[-num_lines:]) or "it printed nothing"


@contextmanager
def program(command: Sequence[str], *, log: Path, environment: Mapping[str, str]) -> Iterator[Program]:
    """Run `command` for as long as the block lasts. Raises OSError if it cannot be started."""
    if not Path(command[0]).is_file():
        raise FileNotFoundError(2, "no such program", command[0])
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(LEASH), *command],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=dict(environment),
            start_new_session=True,  # Ctrl-C in a terminal is for us; we end it in order
        )
    try:
        yield Program(process, log)
    finally:
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(END_S)
        finally:
            process.kill()
