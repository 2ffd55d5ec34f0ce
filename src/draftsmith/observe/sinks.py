"""TensorBoard, W&B and trackio: what the journal says, in somebody else's dashboard.

The journal is the record; these are copies. None of them can hold up or fail a step: each works in a thread of its
own, and one that fails or hangs is dropped with one warning, also at the end of a run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from draftsmith.errors import ConfigError
from draftsmith.flow import BestEffort
from draftsmith.observe.tail import Row

CLOSE_S = 20.0  # all sinks together, at the end of a run
IN_A_HURRY_S = 3.0  # the same when a signal or a failure ends it
PROJECT = "draftsmith"
NOT_DRAWN = {"time", "step", "seq", "event"}

Write = Callable[[Row], None]
OpenSink = Callable[[Path, dict[str, Any]], AbstractContextManager[Write]]


class Sinks:
    """A listener of the journal that hands every row to all sinks. `warn` is told of each trouble, by the caller's
    thread."""

    def __init__(self, sinks: Sequence[BestEffort[Row]], warn: Callable[[str], None]) -> None:
        self._sinks = sinks
        self._warn = warn

    def metrics(self, row: Row) -> None:
        self._offer(row)
        self._tell()

    def event(self, row: Row) -> None:
        """Events may come from any thread, so trouble is told with the next row."""
        self._offer(row)

    def close(self, deadline_s: float) -> None:
        """Let them finish, all together within `deadline_s`."""
        end = time.monotonic() + deadline_s
        for sink in self._sinks:
            sink.finish()
        for sink in self._sinks:
            sink.close(end - time.monotonic())
        self._tell()

    def _offer(self, row: Row) -> None:
        for sink in self._sinks:
            sink.offer(row)

    def _tell(self) -> None:
        for sink in self._sinks:
            if (trouble := sink.trouble()) is not None:
                self._warn(f"sink {sink.name} {trouble}")


@contextmanager
def open_sinks(
    names: Sequence[str], run: Path, config: dict[str, Any], *, warn: Callable[[str], None]
) -> Iterator[Sinks]:
    """Sinks by name, closed on the way out. Opening happens aside: this returns at once."""
    sinks = Sinks([BestEffort(name, SINKS[name](run, config)) for name in names], warn)
    try:
        yield sinks
    except BaseException:
        sinks.close(IN_A_HURRY_S)
        raise
    sinks.close(CLOSE_S)


def check_sinks(names: Sequence[str]) -> None:
    """Raises ConfigError if the package of one is missing: better before training than a warning in it."""
    for name in names:
        if find_spec(name) is None:
            raise ConfigError(
                f"observe.sinks names {name}, which is not installed; pip install 'draftsmith[{name}]', or leave it out"
            )


def scalars(row: Row) -> dict[str, float]:
    """What of a row can be drawn, by name: `loss`, `accuracy_by_slot/1`, `flow/stages/target/busy`.

    The numbers of an event go under its kind. What is not finite is left out, as text is.
    """
    kind = row.get("event")
    found: dict[str, float] = {}
    for name, value in row.items():
        if name not in NOT_DRAWN:
            _flatten(f"{kind}/{name}" if kind else name, value, found)
    return found


def _flatten(name: str, value: Any, found: dict[str, float]) -> None:
    if isinstance(value, bool | int | float):
        found[name] = float(value)
    elif isinstance(value, dict):
        for key, inner in value.items():
            _flatten(f"{name}/{key}", inner, found)
    elif isinstance(value, list | tuple):
        for index, inner in enumerate(value, start=1):
            _flatten(f"{name}/{index}", inner, found)


@contextmanager
def _tensorboard(run: Path, _config: dict[str, Any]) -> Iterator[Write]:
    """An event file in tensorboard/ of the run directory.

    All numbers of a row go into one event: `add_scalar` makes one of each, which takes several times as long.
    """
    from tensorboard.compat.proto.summary_pb2 import Summary
    from torch.utils.tensorboard import FileWriter

    writer = FileWriter(str(run / "tensorboard"))

    def write(row: Row) -> None:
        values = [Summary.Value(tag=name, simple_value=value) for name, value in scalars(row).items()]
        writer.add_summary(Summary(value=values), row.get("step"), walltime=row["time"])

    try:
        yield write
    finally:
        writer.close()


@contextmanager
def _wandb(run: Path, config: dict[str, Any]) -> Iterator[Write]:
    """An offline run in wandb/ of the run directory; `wandb sync` uploads it, if anybody wants to."""
    import wandb

    settings = wandb.Settings(console="off", silent=True, disable_git=True, disable_code=True, x_disable_stats=True)
    session = wandb.init(project=PROJECT, name=run.name, dir=str(run), mode="offline", config=config, settings=settings)
    try:
        yield lambda row: session.log({**scalars(row), "step": row.get("step", 0)})
    finally:
        session.finish()
        wandb.teardown()  # waits until the process that writes the file has written it


@contextmanager
def _trackio(run: Path, config: dict[str, Any]) -> Iterator[Write]:
    """A run in trackio's own local database."""
    import trackio

    session = trackio.init(
        project=PROJECT, name=run.name, config=config, resume="allow", auto_log_gpu=False, auto_log_cpu=False
    )
    try:
        yield lambda row: session.log(scalars(row), step=row.get("step"))
    finally:
        session.finish()


SINKS: dict[str, OpenSink] = {"tensorboard": _tensorboard, "wandb": _wandb, "trackio": _trackio}
