"""What keeps garbage out of the model: a step that is not finite is never applied, a sudden loss is never unseen."""

from __future__ import annotations

import math
import statistics
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Literal

WINDOW = 128  # losses that a new one is compared with
SIGMAS = 6.0
NARROWEST = 1e-3  # sigma is at least this share of the mean: a constant loss makes no spike of rounding
MAX_SKIPPED_IN_A_ROW = 10

Finding = Literal["", "not finite", "spike"]


@dataclass
class Guards:
    """Statistics over the steps so far; part of every checkpoint, so that a resumed run judges as it would have."""

    losses: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))
    num_skipped: int = 0
    num_spikes: int = 0
    skipped_in_a_row: int = 0

    def judge(self, loss: float, grad_norm: float) -> Finding:
        """What is wrong with a step, before it is applied; "" if nothing is.

        A spike joins the losses that later ones are compared with, so that a lasting change becomes the new normal.
        """
        if not (math.isfinite(loss) and math.isfinite(grad_norm)):
            self.skipped_in_a_row += 1
            self.num_skipped += 1
            return "not finite"
        self.skipped_in_a_row = 0
        is_spike = loss > self.threshold()
        self.losses.append(loss)
        self.num_spikes += is_spike
        return "spike" if is_spike else ""

    def threshold(self) -> float:
        """The loss above which a step is a spike; infinite until there are enough losses to say."""
        if len(self.losses) < WINDOW:
            return math.inf
        mean = statistics.fmean(self.losses)
        return mean + SIGMAS * max(statistics.pstdev(self.losses, mean), NARROWEST * abs(mean))

    @property
    def must_stop(self) -> bool:
        return self.skipped_in_a_row >= MAX_SKIPPED_IN_A_ROW

    def to_json(self) -> dict[str, Any]:
        return {
            "losses": list(self.losses),
            "num_skipped": self.num_skipped,
            "num_spikes": self.num_spikes,
            "skipped_in_a_row": self.skipped_in_a_row,
        }

    @staticmethod
    def from_json(saved: dict[str, Any]) -> Guards:
        losses = deque((float(loss) for loss in saved["losses"]), maxlen=WINDOW)
        counts = (int(saved[name]) for name in ("num_skipped", "num_spikes", "skipped_in_a_row"))
        return Guards(losses, *counts)
