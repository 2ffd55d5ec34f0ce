"""What a check of the machine found, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

Status = Literal["ok", "note", "warning", "problem"]


@dataclass(frozen=True)
class Finding:
    """`problem` prevents training, `warning` will hurt, `note` is good to know. `advice` is empty where all is well.

    `facts` are the same figures for programs, JSON only.
    """

    name: str
    status: Status
    found: str
    advice: str = ""
    facts: dict[str, Any] = field(default_factory=dict)
