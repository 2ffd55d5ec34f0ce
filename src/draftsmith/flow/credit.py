"""Bytes on credit: what every admitted item may hold, taken at once and in plan order. Pure: no threads, no clock.

An item is admitted with the bytes of all results that stages will ever make of it. So the oldest item never waits for
credit that younger ones hold, which is what makes a deadlock impossible. The price: credit for a late stage is held
while the item is still in an early one.
"""

from __future__ import annotations

from collections.abc import Sequence


class Credit:
    """Credited bytes by item and stage. With no budget everything fits."""

    def __init__(self, num_stages: int, budget_bytes: int | None) -> None:
        self.budget_bytes = budget_bytes
        self.used = 0
        self.peak = 0
        self.by_stage = [0] * num_stages
        self._held: dict[int, list[int]] = {}

    def fits(self, parts: Sequence[int]) -> bool:
        """Whether an item of these bytes per stage may enter. One larger than the budget enters alone."""
        return self.budget_bytes is None or self.used == 0 or self.used + sum(parts) <= self.budget_bytes

    def admit(self, seq: int, parts: Sequence[int]) -> None:
        held = list(parts)
        if not any(held):
            return
        self._held[seq] = held
        for stage, num_bytes in enumerate(held):
            self.by_stage[stage] += num_bytes
        self.used += sum(held)
        self.peak = max(self.peak, self.used)

    def release(self, seq: int, stage: int) -> None:
        """The result of `stage` is no longer needed by anyone."""
        held = self._held.get(seq)
        if held is None:
            return
        self._give_back(held, stage)
        if not any(held):
            del self._held[seq]

    def release_from(self, seq: int, keep: set[int]) -> None:
        """Everything of items `seq` and later, but for those in `keep`."""
        for later in [later for later in self._held if later >= seq and later not in keep]:
            held = self._held.pop(later)
            for stage in range(len(held)):
                self._give_back(held, stage)

    def _give_back(self, held: list[int], stage: int) -> None:
        self.by_stage[stage] -= held[stage]
        self.used -= held[stage]
        held[stage] = 0
