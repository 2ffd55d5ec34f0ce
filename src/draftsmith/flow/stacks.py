"""Stacks of threads in words: what everybody was doing when nothing moved."""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Sequence


def stacks_of(threads: Sequence[threading.Thread] | None) -> str:
    """The stack of each of these threads, or of all there are."""
    frames = sys._current_frames()
    chosen = threading.enumerate() if threads is None else threads
    return "\n".join(
        f"thread {thread.name}:\n{''.join(traceback.format_stack(frames[thread.ident]))}"
        for thread in chosen
        if thread.ident in frames
    )
