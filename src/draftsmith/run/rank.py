"""One rank that was started by `launching`, `probing` or `on_ray`: trains or measures, and answers how it ended."""

from __future__ import annotations

import functools
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from draftsmith.config import parse_config
from draftsmith.distributed import Seat, answering, seat_of
from draftsmith.errors import DraftsmithError, Interrupted, RankError
from draftsmith.run.launching import CAN_BE_MENDED, LOST_A_RANK
from draftsmith.run.on_ray import workers_elsewhere
from draftsmith.run.probing import measure_at
from draftsmith.run.training import train
from draftsmith.streams import Workers, workers_here


def main() -> None:
    """Entry point of the process."""
    signal.signal(signal.SIGTERM, _on_sigterm)
    with answering() as (word, answer):
        code = _obey(word, answer)
    sys.stderr.flush()
    os._exit(code)  # connections to ranks that are gone would have to time out


def obey_in_actor(word: Mapping[str, Any], answer: Callable[[Mapping[str, Any]], None], actors: Sequence[Any]) -> int:
    """The same in an actor of Ray, with targets in others. Returns the exit code that the process would have."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, _on_sigterm)
    return _obey(word, answer, functools.partial(workers_elsewhere, actors))


def _obey(word: Mapping[str, Any], answer: Callable[[Mapping[str, Any]], None], workers: Workers = workers_here) -> int:
    try:
        config = parse_config(word["config"])
        if "num_batches" in word:
            answer({"report": measure_at(config, _own_seat(), num_batches=word["num_batches"])})
        else:
            train(config, name=word["name"], resume=word["resume"], workers=workers)
    except DraftsmithError as error:
        answer({"error": type(error).__name__, "text": str(error)})
        return LOST_A_RANK if isinstance(error, RankError) else CAN_BE_MENDED
    except Interrupted as stop:
        answer({"kept": str(stop).partition("; ")[2]})
        return stop.exit_code
    except KeyboardInterrupt:
        return 130
    return 0


def _own_seat() -> Seat:
    seat = seat_of(os.environ)
    assert seat is not None, "whoever starts a rank tells it its seat"
    return seat


def _on_sigterm(_number: int, _frame: object) -> None:
    raise Interrupted(signal.SIGTERM, "nothing half-written is left behind")
