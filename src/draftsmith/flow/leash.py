"""Runs a command and ends it when standard input closes, that is when whoever started us is gone, however it ended.

A script of its own, run by path in a bare interpreter: `python -I -S leash.py COMMAND...`. Its exit code is the
command's, 128 plus the signal's number if a signal ended it.
"""

import os
import subprocess
import sys
import threading


def main() -> None:
    child = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL)
    threading.Thread(target=_end_with_input, args=(child,), daemon=True).start()
    code = child.wait()
    os._exit(code if code >= 0 else 128 - code)  # the thread still reads; ordinary shutdown would wait for it


def _end_with_input(child: "subprocess.Popen[bytes]") -> None:
    while os.read(0, 4096):
        pass
    child.kill()


if __name__ == "__main__":
    main()
