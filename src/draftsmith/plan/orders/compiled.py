"""The quota loop compiled with numba, when the extra `fast` is installed. Same source, same arrays, bit for bit."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable
from typing import Any

import numpy as np

from draftsmith.errors import PlanError
from draftsmith.plan.orders.kernel import extend_order

_WORTH_COMPILING = 200_000  # steps; below, loading numba takes about as long as the plain loop


def compiled_extend(num_steps: int, wanted: bool | None) -> tuple[Callable[..., int], Callable[[Any], Any]] | None:
    """(loop, conversion of a sequence to what it takes), or None for the plain loop.

    wanted: True insists (PlanError without numba), False declines, None decides by size and by what is installed.
    """
    installed = importlib.util.find_spec("numba") is not None
    if wanted is False or (wanted is None and (not installed or num_steps < _WORTH_COMPILING)):
        return None
    if not installed:
        raise PlanError("the compiled order needs numba; install draftsmith[fast], or leave compiled out")
    return _loop(), lambda sequence: np.asarray(sequence, dtype=np.int64)


@functools.cache
def _loop() -> Callable[..., int]:
    import numba

    return numba.njit(cache=True)(extend_order)  # type: ignore[no-any-return]
