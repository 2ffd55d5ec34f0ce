"""Several processes that train one drafter: how they are started, how they agree, how gradients are summed.

The drafter is whole on each of them, or spread over all.
"""

from draftsmith.distributed.peers import ALONE, Agreement, Peers, Seat, joined, seat_of
from draftsmith.distributed.ranks import Ended, RankEnd, answering, run_ranks
from draftsmith.distributed.sharding import as_part_of, is_sharded, part, shard, shared_pass, whole

__all__ = [
    "ALONE",
    "Agreement",
    "Ended",
    "Peers",
    "RankEnd",
    "Seat",
    "answering",
    "as_part_of",
    "is_sharded",
    "joined",
    "part",
    "run_ranks",
    "seat_of",
    "shard",
    "shared_pass",
    "whole",
]
