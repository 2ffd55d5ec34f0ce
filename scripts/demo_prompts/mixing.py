"""Crosses templates with fillings so that every filling comes once before any comes again."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence


def crossed(rng: random.Random, templates: Sequence[str], fillings: Sequence[str]) -> Iterator[tuple[str, str]]:
    """All pairs (template, filling), in rounds: each round visits each filling once, with another template."""
    for turn in range(len(templates)):
        order = list(range(len(fillings)))
        rng.shuffle(order)
        for index in order:
            yield templates[(index + turn) % len(templates)], fillings[index]


def lines(text: str) -> tuple[str, ...]:
    """The non-empty lines of a word list."""
    return tuple(line.strip() for line in text.splitlines() if line.strip())


def items(text: str) -> tuple[str, ...]:
    """The entries of a word list that separates them by semicolons."""
    return tuple(entry for entry in (" ".join(part.split()) for part in text.split(";")) if entry)


def words(text: str) -> tuple[str, ...]:
    """The entries of a list of single words."""
    return tuple(text.split())
