"""Several processes that train one drafter: how they are started, how they agree, how gradients are summed."""

from draftsmith.distributed.peers import ALONE, Peers, Seat, joined, seat_of
from draftsmith.distributed.ranks import Ended, RankEnd, answering, run_ranks

__all__ = ["ALONE", "Ended", "Peers", "RankEnd", "Seat", "answering", "joined", "run_ranks", "seat_of"]
