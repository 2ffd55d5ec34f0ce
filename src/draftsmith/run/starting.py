"""train() and tune(), wherever they run: in this process, in several of this machine, or in actors of Ray."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from draftsmith.config import RunConfig
from draftsmith.distributed import Ended, Seat, seat_of
from draftsmith.errors import RankError
from draftsmith.observe import check_sinks
from draftsmith.run.launching import launch, raise_what_a_rank_raised, ranks_here
from draftsmith.run.on_ray import launch_on_ray, ranks_on_ray
from draftsmith.run.probing import measure_at
from draftsmith.run.seating import check_starter
from draftsmith.run.training import train_at


def train(config: RunConfig, *, name: str, resume: bool = False) -> dict[str, Any] | None:
    """Train, save, export, measure; returns what summary.json holds, None on a rank that does not lead.

    A run directory that holds an unfinished run is gone on with; `resume` insists on that. Raises Interrupted if a
    signal ended it early.
    """
    seat = _seat_here(config)
    if seat is not None:
        return train_at(config, seat, name=name, resume=resume)
    check_sinks(config.observe.sinks)  # ranks do as well, but they would have to be started first
    return (launch_on_ray if config.runtime == "ray" else launch)(config, name=name, resume=resume)


def tune(config: RunConfig, *, num_batches: int) -> str | None:
    """Measure target and drafter where they would run, and predict what every placement of them would give.

    Ranks measure at the same time, as they will train, and their report is of all of them together; None on those that
    do not lead.
    """
    seat = _seat_here(config)
    return _tune_elsewhere(config, num_batches) if seat is None else measure_at(config, seat, num_batches=num_batches)


def _seat_here(config: RunConfig) -> Seat | None:
    """The seat of this process; None if it is to start those that have one."""
    seat = seat_of(os.environ)
    check_starter(config, seat)
    starts_others = config.runtime == "ray" or config.distributed.num_processes > 1
    return seat or (None if starts_others else Seat())


def _tune_elsewhere(config: RunConfig, num_batches: int) -> str:
    with _ranks(config) as (settled, ranks):
        ended = ranks({"config": settled.model_dump(mode="json"), "num_batches": num_batches})
    raise_what_a_rank_raised(ended)
    found = [end.answer["report"] for end in ended.ranks if end.answer is not None and end.answer.get("report")]
    if not found:
        raise RankError(f"{ended.ranks[0].how} before all had measured; what it printed says why")
    return str(found[0])


@contextmanager
def _ranks(config: RunConfig) -> Iterator[tuple[RunConfig, Callable[[Mapping[str, Any]], Ended]]]:
    if config.runtime == "ray":
        with ranks_on_ray(config) as found:
            yield found
        return
    yield config, ranks_here(config)
