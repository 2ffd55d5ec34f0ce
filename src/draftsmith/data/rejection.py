"""Why a row is not used: one of few reasons, to be counted, and a detail about this row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

NUM_PLACES = 20  # of rows with one reason that are named; all are counted


@dataclass(frozen=True)
class Rejection:
    """A row that cannot be used. `source` is empty where there is only one."""

    line: int
    reason: str
    detail: str = ""
    source: str = ""

    def __str__(self) -> str:
        place = f"{self.source}, line {self.line}" if self.source else f"line {self.line}"
        return f"{place}: {self.reason}" + (f": {self.detail}" if self.detail else "")


@dataclass(frozen=True)
class Rejected:
    """All rows that cannot be used for one reason: how many, and the first that were met, NUM_PLACES at most."""

    count: int
    places: tuple[Rejection, ...]

    @property
    def first(self) -> Rejection:
        return self.places[0]

    def __add__(self, later: Rejected) -> Rejected:
        return Rejected(self.count + later.count, (self.places + later.places)[:NUM_PLACES])

    def to_json(self) -> dict[str, Any]:
        places = [{"line": row.line, "detail": row.detail, "source": row.source} for row in self.places]
        return {"reason": self.first.reason, "count": self.count, "places": places}

    @classmethod
    def from_json(cls, known: dict[str, Any]) -> Rejected:
        """Also of version 2, which named the first row only."""
        places = known["places"] if "places" in known else [{**known, "line": known["first_line"]}]
        rows = (Rejection(place["line"], known["reason"], place["detail"], place["source"]) for place in places)
        return cls(known["count"], tuple(rows))


def joined(rows: dict[str, Rejected], later: dict[str, Rejected]) -> dict[str, Rejected]:
    """Both, by reason."""
    return rows | {reason: rows[reason] + more if reason in rows else more for reason, more in later.items()}


class RowError(Exception):
    """Why one row is unusable; becomes a `Rejection` where the line is known."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason, detail)
        self.reason = reason
        self.detail = detail

    def __reduce__(self) -> tuple[type[RowError], tuple[str, str]]:
        return RowError, (self.reason, self.detail)
