"""Example answers as they were decoded: which tokens were accepted drafts, and which the target's own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from draftsmith.report.record import RunRecord


@dataclass(frozen=True)
class Piece:
    """Text of one token. kind: "own" (the target chose it) or "draft" (a draft that the target accepted). place: which
    token of its verification it is, from 1; 0 for the first of all, which the prompt's own forward gave."""

    text: str
    kind: str
    place: int


@dataclass(frozen=True)
class Answer:
    """One example. forwards: verifications that it took."""

    set_name: str
    prompt: str
    pieces: tuple[Piece, ...]
    forwards: int

    @property
    def per_forward(self) -> float:
        return (len(self.pieces) - 1) / self.forwards if self.forwards else 1.0


def answers_of(record: RunRecord) -> list[Answer]:
    """The examples of examples.json that read as such."""
    return [answer for example in record.examples if (answer := _answer(example)) is not None]


def _answer(example: Mapping[str, Any]) -> Answer | None:
    texts, committed = example.get("pieces"), example.get("committed")
    if not isinstance(texts, list) or not isinstance(committed, list) or not texts:
        return None
    if not all(isinstance(count, int) and count > 0 for count in committed):
        return None
    kinds: list[tuple[str, int]] = [("own", 0)]
    for count in committed:
        # Drafts that were accepted, then the one that the target gave instead of the first wrong draft.
        kinds += [("draft", place) for place in range(1, count)] + [("own", count)]
    pieces = [Piece(str(text), *kind) for text, kind in zip(texts, kinds, strict=False)]
    return Answer(str(example.get("set", "")), str(example.get("prompt", "")), tuple(pieces), len(committed))
