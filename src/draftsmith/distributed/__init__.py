"""Several processes that train one drafter: how they are started, how they agree, how gradients are summed.

The drafter is whole on each of them, or spread over all.
"""

from draftsmith.distributed.actors import RemoteFunction
from draftsmith.distributed.cluster import (
    Machine,
    budget_bytes_in,
    own_ray,
    ray_at,
    require_ray,
    shared_bytes,
    store_bytes_for,
)
from draftsmith.distributed.peers import ALONE, Agreement, Peers, Seat, joined, seat_of
from draftsmith.distributed.placing import Share, Takes, placed
from draftsmith.distributed.ranks import Ended, RankEnd, answering, processes, run_ranks
from draftsmith.distributed.sharding import as_part_of, is_sharded, part, shard, shared_pass, whole

__all__ = [
    "ALONE",
    "Agreement",
    "Ended",
    "Machine",
    "Peers",
    "RankEnd",
    "RemoteFunction",
    "Seat",
    "Share",
    "Takes",
    "answering",
    "as_part_of",
    "budget_bytes_in",
    "is_sharded",
    "joined",
    "own_ray",
    "part",
    "placed",
    "processes",
    "ray_at",
    "require_ray",
    "run_ranks",
    "seat_of",
    "shard",
    "shared_bytes",
    "shared_pass",
    "store_bytes_for",
    "whole",
]
