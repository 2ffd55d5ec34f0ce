"""One rank that was started by `launching` or `on_ray`: trains or measures, and answers how it ended."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Mapping
from typing import Any

from draftsmith.config import parse_config
from draftsmith.distributed import answering, seat_of
from draftsmith.errors import DraftsmithError, Interrupted, RankError
from draftsmith.run.launching import CAN_BE_MENDED, LOST_A_RANK
from draftsmith.run.probing import measure_at
from draftsmith.run.training import train_at
from draftsmith.streams import Workers, workers_here


def main() -> None:
    """Entry point of the process."""
    with answering() as (word, answer):
        code = obey(word, answer)
    sys.stderr.flush()
    os._exit(code)  # connections to ranks that are gone would have to time out


def obey(word: Mapping[str, Any], answer: Callable[[Mapping[str, Any]], None], workers: Workers = workers_here) -> int:
    """Do what the word says, in the main thread. Returns the exit code."""
    signal.signal(signal.SIGTERM, _on_sigterm)
    seat = seat_of(os.environ)
    assert seat is not None, "whoever starts a rank tells it its seat"
    try:
        config = parse_config(word["config"])
        if "num_batches" in word:
            answer({"report": measure_at(config, seat, num_batches=word["num_batches"])})
        else:
            train_at(config, seat, name=word["name"], resume=word["resume"], workers=workers)
    except DraftsmithError as error:
        answer({"error": type(error).__name__, "text": str(error)})
        return LOST_A_RANK if isinstance(error, RankError) else CAN_BE_MENDED
    except Interrupted as stop:
        answer({"kept": str(stop).partition("; ")[2]})
        return stop.exit_code
    except KeyboardInterrupt:
        return 130
    return 0


def _on_sigterm(_number: int, _frame: object) -> None:
    raise Interrupted(signal.SIGTERM, "nothing half-written is left behind")
