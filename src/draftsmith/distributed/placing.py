"""The driver's side of Ray: who gets which place, and ranks that are started there, again and again if need be.

Everything belongs to the driver: actors and places are gone when it is, however it ended.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from draftsmith.distributed.actors import Entry, FunctionActor, RankActor
from draftsmith.distributed.orders import heard, order
from draftsmith.distributed.ranks import Ended, Ends, Meeting, RankEnd, run_ranks
from draftsmith.errors import ConfigError, DraftsmithError, first_line

BY_ERROR = 2  # exit code of a rank that failed with an error that people can mend
BY_FAULT = 1
KILLED = -9


@dataclass(frozen=True)
class Takes:
    """What one actor takes of a machine."""

    cpus: float
    gpus: float = 0.0


@dataclass(frozen=True)
class Share:
    """What one rank takes: for itself, and for each of the functions that it calls."""

    rank: Takes
    functions: Sequence[Takes]

    @property
    def cpus(self) -> float:
        return self.rank.cpus + sum(takes.cpus for takes in self.functions)

    @property
    def gpus(self) -> float:
        return self.rank.gpus + sum(takes.gpus for takes in self.functions)


@dataclass(frozen=True)
class Placed:
    """Places for ranks, and the actors that outlive them, by rank."""

    shares: Sequence[Share]
    group: Any
    functions: Sequence[Sequence[Any]]
    placing_s: float

    def run(self, entry: Entry, word: Mapping[str, Any], directory: str) -> Ended:
        """Run `entry` in every rank until all have ended; what they print is printed here."""
        import ray

        meet = Meeting.opened(ray.util.get_node_ip_address())
        start = functools.partial(_rank, self, meet, entry, word, directory)
        with heard(meet):
            return run_ranks(start, len(self.shares), meet=meet)


@contextmanager
def placed(shares: Sequence[Share], *, placing_s: float, max_restarts: int) -> Iterator[Placed]:
    """Places for all ranks, as far apart as can be, and their functions' actors, near them where there is room.

    Raises ConfigError if there is no room within `placing_s`. An actor that dies gets another place `max_restarts`
    times.
    """
    import ray
    from ray.util import placement_group, placement_group_table, remove_placement_group
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    group = placement_group([_resources(share.rank) for share in shares], strategy="SPREAD")
    try:
        if not group.wait(placing_s):
            raise ConfigError(_no_room(f"{len(shares)} ranks", shares, placing_s))
        nodes = placement_group_table(group)["bundles_to_node_id"]
        functions = [
            [
                ray.remote(FunctionActor)
                .options(
                    num_cpus=takes.cpus,
                    num_gpus=takes.gpus,
                    max_restarts=max_restarts,
                    scheduling_strategy=NodeAffinitySchedulingStrategy(
                        nodes[rank], soft=True, _spill_on_unavailable=True
                    ),
                )
                .remote()
                for takes in share.functions
            ]
            for rank, share in enumerate(shares)
        ]
        try:
            ray.get([actor.here.remote() for actors in functions for actor in actors], timeout=placing_s)
        except ray.exceptions.GetTimeoutError:
            raise ConfigError(_no_room("all target workers", shares, placing_s)) from None
        yield Placed(shares, group, functions, placing_s)
    finally:
        with suppress(Exception):  # where Ray itself has gone, so have they
            remove_placement_group(group)


class _ActorRank:
    """A running rank, for run_ranks."""

    def __init__(self, actor: Any, meet: Meeting, rank: int) -> None:
        self._actor = actor
        self._meet = meet
        self._rank = rank

    def kill(self) -> None:
        import ray

        ray.kill(self._actor)

    def send_signal(self, number: int) -> None:
        order(self._meet, self._rank, number)


@contextmanager
def _rank(
    placed: Placed,
    meet: Meeting,
    entry: Entry,
    word: Mapping[str, Any],
    directory: str,
    rank: int,
    environment: Mapping[str, str],
    ends: Ends,
) -> Iterator[_ActorRank]:
    """A rank in its place. Leaving kills it if it has not ended."""
    import ray
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    takes = placed.shares[rank].rank
    where = PlacementGroupSchedulingStrategy(placed.group, placement_group_bundle_index=rank)
    actor = (
        ray.remote(RankActor)
        .options(num_cpus=takes.cpus, num_gpus=takes.gpus, max_restarts=0, scheduling_strategy=where)
        .remote()
    )
    here = actor.here.remote()
    end = actor.run.remote(entry, word, directory, environment, placed.functions[rank])
    waiting = threading.Thread(target=_wait_for, args=(here, end, placed, rank, ends), name=f"rank {rank}", daemon=True)
    waiting.start()
    try:
        yield _ActorRank(actor, meet, rank)
    finally:
        ray.kill(actor)
        waiting.join()


def _wait_for(here: Any, end: Any, placed: Placed, rank: int, ends: Ends) -> None:
    """Put into the queue how a rank ended. It may train for as long as it likes, once it has its place."""
    import ray

    try:
        ray.get(here, timeout=placed.placing_s)
        ends.put(RankEnd(rank, *ray.get(end)))
    except ray.exceptions.GetTimeoutError:
        text = _no_room(f"rank {rank}", placed.shares, placed.placing_s)
        ends.put(RankEnd(rank, BY_ERROR, {"error": "RankError", "text": text}))
    except ray.exceptions.RayTaskError as error:
        mends = isinstance(error.cause, DraftsmithError)
        said = {"error": type(error.cause).__name__, "text": str(error.cause if mends else error)}
        ends.put(RankEnd(rank, BY_ERROR if mends else BY_FAULT, said))
    except Exception as error:  # Ray's own
        ends.put(RankEnd(rank, KILLED, None, f"is gone, or its machine ({first_line(error)})"))


def _resources(takes: Takes) -> dict[str, float]:
    return {name: value for name, value in (("CPU", takes.cpus), ("GPU", takes.gpus)) if value}


def _no_room(who: str, shares: Sequence[Share], placing_s: float) -> str:
    cpus, gpus = sum(share.cpus for share in shares), sum(share.gpus for share in shares)
    return (
        f"Ray has found no room for {who} within {placing_s:g} s (ray.placing_s); the run takes {cpus:g} CPUs and "
        f"{gpus:g} GPUs in all: use fewer processes or target devices, or add machines"
    )
