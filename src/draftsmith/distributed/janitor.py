"""Cleans up after a Ray of our own when standard input closes, that is when its driver is gone, however it ended.

A script of its own, run by path in a bare interpreter: `python -I -S janitor.py DIRECTORY`. Removes the directory, and
ends every process that knows it: some of Ray's outlive their parents by a minute.
"""

import os
import shutil
import signal
import sys
import time

ROUNDS = 50
TITLE = b"ray::"


def main() -> None:
    directory = sys.argv[1]
    sys.stdin.read()
    clean = 0
    for _ in range(ROUNDS):
        is_clean = not _end_all(directory) and not os.path.exists(directory)
        clean = clean + 1 if is_clean else 0
        if clean == 2:
            return
        shutil.rmtree(directory, ignore_errors=True)
        time.sleep(0.1)


def _end_all(name: str) -> bool:
    """Was there anything to end?"""
    found = False
    for number in filter(str.isdecimal, os.listdir("/proc") if os.path.isdir("/proc") else []):
        try:
            if _knows(f"/proc/{number}", name):
                os.kill(int(number), signal.SIGKILL)
                found = True
        except OSError:  # it has ended, or belongs to somebody else
            continue
    return found


def _knows(process: str, name: str) -> bool:
    """By its environment; or by its logs, if it is one of Ray's that wrote its title over its environment."""
    with open(f"{process}/environ", "rb") as file:
        if name.encode() in file.read():
            return True
    with open(f"{process}/cmdline", "rb") as file:
        if not file.read().startswith(TITLE):
            return False  # such as a driver that lives on, whose own logs stay open
    return any(name in os.readlink(f"{process}/fd/{number}") for number in os.listdir(f"{process}/fd"))


if __name__ == "__main__":
    main()
