"""Rows of several sources in one order: one source after another, or mixed so that each gives its share.

With weights every next row is drawn from a source by a keyed draw, until the first source has no more: from there on
the shares could not be kept. The rows that the others still hold are read and counted as left out, never just missing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from draftsmith.data.readers import raw_rows
from draftsmith.data.rows import Entry, RawRow
from draftsmith.data.source import Source
from draftsmith.keyed import keyed_generator

DRAWS = 4096


@dataclass(frozen=True)
class PlacedRow:
    """Row `line` of source number `source`, parsed or not; `raw` is None if it is left out to keep the weights."""

    source: int
    line: int
    raw: RawRow | Entry | None

    @property
    def num_bytes(self) -> int:
        """About how much there is to tokenise: of a line its length, of anything else a middling one."""
        return len(self.raw) if isinstance(self.raw, bytes) else 4096


def placed_rows(sources: tuple[Source, ...], *, seed: int, limit: int | None = None) -> Iterator[PlacedRow]:
    """All rows of all sources; the first `limit` where one is given. Raises DataError as `raw_rows` does."""
    mixed = _mixed(sources, seed) if sources[0].weight is not None and len(sources) > 1 else _concatenated(sources)
    for number, row in enumerate(mixed):
        if limit is not None and number >= limit:
            return
        yield row


def _concatenated(sources: tuple[Source, ...]) -> Iterator[PlacedRow]:
    for number, source in enumerate(sources):
        for line, raw in raw_rows(source):
            yield PlacedRow(number, line, raw)


def _mixed(sources: tuple[Source, ...], seed: int) -> Iterator[PlacedRow]:
    rows = [raw_rows(source) for source in sources]
    for number in _draws(sources, seed):
        row = next(rows[number], None)
        if row is None:
            break
        yield PlacedRow(number, *row)
    for number, rest in enumerate(rows):
        for line, _raw in rest:
            yield PlacedRow(number, line, None)


def _draws(sources: tuple[Source, ...], seed: int) -> Iterator[int]:
    weights = [source.weight or 0.0 for source in sources]
    shares = [weight / sum(weights) for weight in weights]
    generator = keyed_generator(seed, "mix", *(f"{share:.12f}" for share in shares))
    while True:
        yield from generator.choice(len(sources), size=DRAWS, p=shares).tolist()
