"""malloc, told to keep what a forward pass frees, because the next one asks for the same again."""

from __future__ import annotations

import ctypes

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8  # of glibc's malloc.h
KEPT_BLOCK = 64 << 20  # larger blocks still come from the system, and go back to it
KEPT_FREE = 512 << 20


def keep_freed_memory() -> None:
    """For this process, from now on: one arena that gives back no less than 512 MiB. Nothing where libc is not glibc.

    Else every activation of more than 128 KiB is new memory, whose pages the system clears one by one: 15 to 20 % of a
    forward pass on a processor (docs/lab-notes.md).
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for setting, value in ((M_MMAP_THRESHOLD, KEPT_BLOCK), (M_TRIM_THRESHOLD, KEPT_FREE), (M_ARENA_MAX, 1)):
            mallopt(setting, value)
