"""Random numbers by key: the same key gives the same draw, on any worker, in any order, after any restart."""

from __future__ import annotations

import hashlib

import numpy as np


def keyed_generator(seed: int, purpose: str, *key: int | str) -> np.random.Generator:
    """A generator that depends on nothing but its key, for example (seed, "anchors", epoch, sample)."""
    name = "\x1f".join(map(str, (seed, purpose, *key)))
    digest = hashlib.blake2b(name.encode(), digest_size=16).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(digest, "little")))
