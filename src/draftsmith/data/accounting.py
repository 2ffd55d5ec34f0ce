"""What became of every row. Two accounts add up to one, so any split of the work gives the same account."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from draftsmith.data.rejection import Rejected, joined


@dataclass(frozen=True)
class Share:
    """Rows of one source."""

    num_read: int = 0
    num_kept: int = 0

    @property
    def num_rejected(self) -> int:
        return self.num_read - self.num_kept

    def __add__(self, other: Share) -> Share:
        return Share(self.num_read + other.num_read, self.num_kept + other.num_kept)


@dataclass(frozen=True)
class Accounting:
    """num_read == num_kept + the sum of the counts in `rejected`; likewise for every source.

    rejected: by reason. num_truncated counts samples, the others rows.
    sources: name -> its rows. notes: what was done to rows that were kept -> how many rows.
    """

    num_read: int = 0
    num_kept: int = 0
    num_truncated: int = 0
    rejected: dict[str, Rejected] = field(default_factory=dict)
    sources: dict[str, Share] = field(default_factory=dict)
    notes: dict[str, int] = field(default_factory=dict)

    @property
    def num_rejected(self) -> int:
        return sum(rejected.count for rejected in self.rejected.values())

    def __add__(self, later: Accounting) -> Accounting:
        return Accounting(
            self.num_read + later.num_read,
            self.num_kept + later.num_kept,
            self.num_truncated + later.num_truncated,
            joined(self.rejected, later.rejected),
            {
                name: self.sources.get(name, Share()) + later.sources.get(name, Share())
                for name in [*self.sources, *(name for name in later.sources if name not in self.sources)]
            },
            {
                note: self.notes.get(note, 0) + later.notes.get(note, 0)
                for note in [*self.notes, *(note for note in later.notes if note not in self.notes)]
            },
        )

    def to_json(self) -> dict[str, Any]:
        most_first = sorted(self.rejected.items(), key=lambda item: (-item[1].count, item[0]))
        return {
            "num_read": self.num_read,
            "num_kept": self.num_kept,
            "num_truncated": self.num_truncated,
            "rejected": [rejected.to_json() for _, rejected in most_first],
            "sources": {name: [share.num_read, share.num_kept] for name, share in self.sources.items()},
            "notes": self.notes,
        }

    @classmethod
    def from_json(cls, known: dict[str, Any]) -> Accounting:
        rejected = {entry["reason"]: Rejected.from_json(entry) for entry in known["rejected"]}
        sources = {name: Share(*counts) for name, counts in known["sources"].items()}
        counts = known["num_read"], known["num_kept"], known["num_truncated"]
        return cls(*counts, rejected, sources, dict(known["notes"]))
