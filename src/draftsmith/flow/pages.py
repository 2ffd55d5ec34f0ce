"""Memory for results that wait in queues: whole pages, which go back to the system as soon as nobody holds them."""

from __future__ import annotations

import mmap


def pages(num_bytes: int) -> mmap.mmap:
    """A writable buffer of zeros, aligned to a page.

    malloc serves blocks of up to 32 MiB from arenas, one per thread, and keeps there what was freed: results that one
    thread makes and another drops leave half of a budget again in arenas.
    """
    return mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
