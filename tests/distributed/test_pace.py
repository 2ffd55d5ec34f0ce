"""Who is called slow."""

from __future__ import annotations

import pytest

from draftsmith.distributed import Agreement
from draftsmith.run.pace import Pace


class Rehearsed:
    """Peers of which each takes as long as it is told."""

    rank, leads = 0, True

    def __init__(self, *took_s: float) -> None:
        self.size, self._took_s = len(took_s), took_s
        self.hosts = tuple("abcd"[: self.size])

    def agree(self, seconds: float, signal: int | None, **_own: object) -> Agreement:
        return Agreement(seconds, signal, took_s=self._took_s)


@pytest.mark.parametrize(
    ("took_s", "words"),
    [
        ((1.0, 1.0, 2.0), "rank 2 on c is slow: the others wait 50 % of the time"),
        ((2.0, 1.9, 1.8), "waiting for each other costs ranks 5 % of the time"),
        ((2.0, 1.0, 2.0), "waiting for each other costs ranks 17 % of the time"),  # most are as slow as the slowest
        ((2.0, 1.0, 1.95, 1.0), "rank 0 on a and rank 2 on c are slow: the others wait 50 % of the time"),
        ((1.0, 2.0), "rank 1 on b is slow: the others wait 50 % of the time"),
    ],
)
def test_a_minority_is_called_slow_when_all_others_wait_for_it(took_s: tuple[float, ...], words: str) -> None:
    pace = Pace(Rehearsed(*took_s))  # type: ignore[arg-type]
    for _ in range(3):
        pace.agree(0.0, None, save=False)
    assert str(pace.summary()["ranks"]["verdict"]).startswith(words)
