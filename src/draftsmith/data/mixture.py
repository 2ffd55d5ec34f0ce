"""Rows of several sources in one order: one source after another, or mixed so that each gives its share.

With weights every next row is drawn from a source by a keyed draw. What then happens where a source has no more rows is
named as `datasets.interleave_datasets` names it:

first_exhausted   the mix ends, and what the others still hold is read and counted as left out, never just missing
all_exhausted     the source begins anew, until every source was read to its end: no row is left out, some come again
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Literal

from draftsmith.data.readers import raw_rows
from draftsmith.data.rows import Entry, RawRow
from draftsmith.data.source import Source
from draftsmith.keyed import keyed_generator

DRAWS = 4096
StoppingStrategy = Literal["first_exhausted", "all_exhausted"]


@dataclass(frozen=True)
class PlacedRow:
    """Row `line` of source number `source`, parsed or not.

    Where source number `ended` had no more, the row is left out to keep the weights, and `raw` is empty. `again`: the
    row was there before.
    """

    source: int
    line: int
    raw: RawRow | Entry
    ended: int | None = None
    again: bool = False

    @property
    def num_bytes(self) -> int:
        """About how much there is to tokenise: of a line its length, of anything else a middling one."""
        return len(self.raw) if isinstance(self.raw, bytes) else 4096


def placed_rows(
    sources: tuple[Source, ...],
    *,
    seed: int,
    stopping_strategy: StoppingStrategy = "first_exhausted",
    limit: int | None = None,
) -> Iterator[PlacedRow]:
    """All rows of all sources; the first `limit` where one is given. Raises DataError as `raw_rows` does."""
    if sources[0].weight is None or len(sources) == 1:
        return islice(_concatenated(sources), limit)
    return islice(_mixed(sources, seed, repeat=stopping_strategy == "all_exhausted"), limit)


def _concatenated(sources: tuple[Source, ...]) -> Iterator[PlacedRow]:
    for number, source in enumerate(sources):
        for line, raw in raw_rows(source):
            yield PlacedRow(number, line, raw)


def _mixed(sources: tuple[Source, ...], seed: int, *, repeat: bool) -> Iterator[PlacedRow]:
    rows = [raw_rows(source) for source in sources]
    ended = [False] * len(sources)
    for number in _draws(sources, seed):
        row = next(rows[number], None)
        if row is None:
            ended[number] = True
            if not repeat or all(ended):
                break
            rows[number] = raw_rows(sources[number])
            row = next(rows[number])
        yield PlacedRow(number, *row, again=ended[number])
    if repeat:
        return
    for number, rest in enumerate(rows):
        for line, _raw in rest:
            yield PlacedRow(number, line, b"", ended=ended.index(True))


def _draws(sources: tuple[Source, ...], seed: int) -> Iterator[int]:
    weights = [source.weight or 0.0 for source in sources]
    shares = [weight / sum(weights) for weight in weights]
    generator = keyed_generator(seed, "mix", *(f"{share:.12f}" for share in shares))
    while True:
        yield from generator.choice(len(sources), size=DRAWS, p=shares).tolist()
