"""What stands in tables: the measured sets, and the settings and facts of a run in groups."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from draftsmith.report.record import RunRecord


@dataclass(frozen=True)
class SetLine:
    """Acceptance on one set of prompts; NaN where it was not recorded. by_slot: share accepted at slot 1, 2, ..."""

    name: str
    length: float
    length_by_response: float
    num_prompts: float
    num_verifications: float
    by_slot: tuple[float, ...]


@dataclass(frozen=True)
class Group:
    """Names and values that belong together."""

    name: str
    rows: tuple[tuple[str, str], ...]


def set_lines(record: RunRecord) -> list[SetLine]:
    """The measured sets, as summary.json holds them."""
    sets = record.summary.get("sets")
    found = sets if isinstance(sets, Mapping) else {}
    return [
        SetLine(
            name=str(name),
            length=number_of(values.get("length")),
            length_by_response=number_of(values.get("length_by_response")),
            num_prompts=number_of(values.get("num_prompts")),
            num_verifications=number_of(values.get("num_verifications")),
            by_slot=tuple(number_of(value) for value in by_slot)
            if isinstance(by_slot := values.get("by_slot"), list)
            else (),
        )
        for name, values in found.items()
        if isinstance(values, Mapping)
    ]


def setup_groups(record: RunRecord) -> list[Group]:
    """Configuration section by section, then the environment."""
    plain = {name: value for name, value in record.config.items() if not isinstance(value, Mapping)}
    sections = {name: value for name, value in record.config.items() if isinstance(value, Mapping)}
    facts: dict[str, Any] = {}
    for name, value in record.environment.items():
        facts |= value if isinstance(value, Mapping) else {name: value}
    everything = {"general": plain, **sections, "environment": facts}
    groups = [Group(name, tuple((str(k), _text(v)) for k, v in values.items())) for name, values in everything.items()]
    return [group for group in groups if group.rows]


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) and abs(value) >= 100_000 else str(value)


def number_of(value: Any) -> float:
    """A number as it was recorded, NaN for anything else."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
