"""Random numbers that are a pure function of a key and a counter.

`key_of` names a draw ("order", seed, epoch, ...), `bits` gives its numbers from any counter on. Nothing here has state,
so step 900,000 costs what step 0 costs, and every platform gets the same bits: the mixing is SplitMix64
(Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators", section 4) on wrapping 64-bit integers.
"""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

_GOLDEN = 0x9E3779B97F4A7C15
_MASK = 0xFFFFFFFFFFFFFFFF

IntArray = npt.NDArray[np.int64]


def key_of(*parts: int | str) -> int:
    """A 64-bit key from its parts. Parts are separated, so ("a", 12) and ("a1", 2) differ."""
    digest = hashlib.sha256("/".join(f"{type(part).__name__}:{part}" for part in parts).encode()).digest()
    return int.from_bytes(digest[:8], "little")


def bits(key: int, num: int, *, start: int = 0) -> npt.NDArray[np.uint64]:
    """64 random bits for each counter in start .. start + num - 1. Shape [num]."""
    word = np.arange(start + 1, start + num + 1, dtype=np.uint64)
    word *= np.uint64(_GOLDEN)
    word += np.uint64(key & _MASK)
    word ^= word >> np.uint64(30)
    word *= np.uint64(0xBF58476D1CE4E5B9)
    word ^= word >> np.uint64(27)
    word *= np.uint64(0x94D049BB133111EB)
    word ^= word >> np.uint64(31)
    return word


def draws(key: int, num: int, *, start: int = 0) -> IntArray:
    """Uniform integers in [0, 2**32), as int64, so that draw * weight >> 32 stays inside 63 bits. Shape [num]."""
    return (bits(key, num, start=start) >> np.uint64(32)).astype(np.int64)


def below(key: int, limit: int, *, counter: int = 0) -> int:
    """One uniform integer in [0, limit), limit at most 2**32; its bias is below limit / 2**64."""
    return int(bits(key, 1, start=counter)[0]) * limit >> 64


def permutation(key: int, num: int) -> IntArray:
    """A uniformly random permutation of 0 .. num - 1: the ranks of random words, ties (2**-64) kept in order."""
    return np.argsort(bits(key, num), kind="stable")
