"""A way into a thread that does not come back, as far as Python has one."""

from __future__ import annotations

import ctypes
import sys
import threading


class Hung(BaseException):
    """Raised inside the caller of a pipeline that nothing has been heard of for too long."""


def interrupt(thread_ident: int) -> None:
    """Raise Hung in that thread at its next step of Python. Inside a call of C it waits until that returns."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread_ident), ctypes.py_object(Hung))


def place_of(thread_ident: int) -> tuple[int, int]:
    """Where that thread is; the same twice means that it has not made a step of Python, or is back there."""
    frame = sys._current_frames().get(thread_ident)
    return (0, 0) if frame is None else (id(frame), frame.f_lasti)


def take_back() -> None:
    """The calling thread is heard of: an interruption that is still on its way does not arrive."""
    try:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(threading.get_ident()), None)
    except Hung:  # it was quicker
        return
