"""Why a row is not used: one of few reasons, to be counted, and a detail about this row."""

from __future__ import annotations

from dataclasses import dataclass


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


class RowError(Exception):
    """Why one row is unusable; becomes a `Rejection` where the line is known."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason, detail)
        self.reason = reason
        self.detail = detail

    def __reduce__(self) -> tuple[type[RowError], tuple[str, str]]:
        return RowError, (self.reason, self.detail)
