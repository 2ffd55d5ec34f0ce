"""Starting the ranks of a run, here on this machine, and starting them again when one died."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from draftsmith import errors
from draftsmith.config import RunConfig
from draftsmith.distributed import Ended, processes, run_ranks
from draftsmith.errors import DraftsmithError, Interrupted, RankError
from draftsmith.observe import Progress
from draftsmith.run.directory import read_json, resume_command, with_directory
from draftsmith.run.rounds import check_step
from draftsmith.run.seating import check_machine
from draftsmith.training import checkpoint_directories, step_of

COMMAND = (sys.executable, "-c", "from draftsmith.run.rank import main; main()")
CAN_BE_MENDED = 2
LOST_A_RANK = 75


def launch(config: RunConfig, *, name: str, resume: bool = False) -> dict[str, Any]:
    """Train in `distributed.num_processes` processes; returns what summary.json holds.

    When one of them dies all are started again from the last checkpoint. Raises what a rank raised, RankError after too
    many deaths without a new checkpoint, Interrupted if a signal ended the run early.
    """
    config = with_directory(config, name, resume=resume)
    return until_trained(config, ranks_here(config), name=name, resume=resume)


def ranks_here(config: RunConfig) -> Callable[[Mapping[str, Any]], Ended]:
    """What runs all ranks on this machine, each of which is told a word. Raises ConfigError if they cannot share it."""
    num_ranks = config.distributed.num_processes
    check_machine(config, num_ranks)
    check_step(config, num_ranks)
    return lambda word: run_ranks(processes(COMMAND, word), num_ranks)


def until_trained(
    config: RunConfig, ranks: Callable[[Mapping[str, Any]], Ended], *, name: str, resume: bool
) -> dict[str, Any]:
    """Run all ranks, each of which is told a word, again and again until they have trained; the law of `launch`."""
    run, deaths = config.run.dir, 0
    assert run is not None, "with_directory comes before"
    while True:
        saved = _newest_step(run)
        ended = ranks({"config": config.model_dump(mode="json"), "name": name, "resume": resume})
        if all(end.code == 0 for end in ended.ranks):
            return read_json(run / "summary.json")
        _raise_unless_one_died(ended, run)
        deaths, resume = deaths + 1 if _newest_step(run) == saved else 1, False
        _say_or_stop(ended, run, deaths, config.distributed.max_restarts)


def _raise_unless_one_died(ended: Ended, run: Path) -> None:
    stopped = [end for end in ended.ranks if end.code in (130, 143)]
    if ended.signal is not None or stopped:
        told = next((end.answer["kept"] for end in ended.ranks if end.answer and "kept" in end.answer), None)
        number = ended.signal if ended.signal is not None else stopped[0].code - 128
        raise Interrupted(number, told or f"what was saved is in {run}; train with --resume goes on")
    raise_what_a_rank_raised(ended)


def raise_what_a_rank_raised(ended: Ended) -> None:
    """An error that people can mend, if that is why the ranks ended."""
    for end in ended.ranks:
        if end.code == CAN_BE_MENDED and end.answer is not None:
            kind = getattr(errors, end.answer["error"])
            assert issubclass(kind, DraftsmithError)
            raise kind(end.answer["text"])


def _say_or_stop(ended: Ended, run: Path, deaths: int, max_restarts: int) -> None:
    first, step = ended.ranks[0], _newest_step(run)
    why = f": {first.answer['text']}" if first.answer and "text" in first.answer else ""
    where = "its beginning" if step is None else f"step {step:,}"
    if deaths > max_restarts:
        raise RankError(
            f"{first.how}{why}; that was death {deaths} without a new checkpoint, so the run ends. What was saved is "
            f"in {run}; to go on from {where}: {resume_command(run)}"
        )
    Progress(str(run)).note(f"{first.how}{why}; all ranks start again from {where} ({deaths} of {max_restarts})")


def _newest_step(run: Path) -> int | None:
    return next((step_of(directory) for directory in checkpoint_directories(run)), None)
