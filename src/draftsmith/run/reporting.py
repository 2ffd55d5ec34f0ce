"""report.html of a run: at its end however it ends, and whenever somebody asks."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from draftsmith.errors import CheckpointError, ConfigError
from draftsmith.files import atomic_write, short_hash
from draftsmith.observe import Progress
from draftsmith.report import (
    RUN_FILES,
    Comparison,
    LivePage,
    RunRecord,
    compare_runs,
    open_server,
    read_run,
    render_comparison,
    render_report,
)
from draftsmith.run.lock import is_held

__all__ = ["Comparison", "compare", "reported", "serve", "write_report"]

REPORT = "report.html"


def write_report(run: Path, destination: Path | None = None) -> Path:
    """Make the page of a run and return where it is. Raises CheckpointError if it cannot be written."""
    return _write(destination or run / REPORT, render_report(_read(run)))


def compare(runs: Sequence[Path], destination: Path) -> Comparison:
    """Lay runs side by side on one page, and return their figures.

    Raises CheckpointError as above, ConfigError for less than two runs.
    """
    if len({run.resolve() for run in runs}) < 2:
        raise ConfigError(
            f"compare puts two or more runs side by side, and {runs[0]} is one; name another, or see "
            f"it alone with `draftsmith report {runs[0]}`"
        )
    records = [_read(run) for run in runs]
    _write(destination, render_comparison(records))
    return compare_runs(records)


def serve(run: Path, *, port: int, tell: Callable[[str], None]) -> None:
    """Show the report of a run on 127.0.0.1, always the newest, until Ctrl-C. Raises ConfigError for a port in use."""
    live = LivePage(lambda: render_report(_read(run)), lambda: _fingerprint(run))
    live.page()  # what is no run is refused before a port is taken
    with open_server(live, port=port) as server:
        tell(f"http://127.0.0.1:{server.server_address[1]}/")
        with suppress(KeyboardInterrupt):
            server.serve_forever()


def _read(run: Path) -> RunRecord:
    return dataclasses.replace(read_run(run), is_held=is_held(run))


def _fingerprint(run: Path) -> str:
    """Changes whenever a run writes."""
    files = [(run / name).stat() for name in RUN_FILES if (run / name).is_file()]
    return short_hash([[found.st_size, found.st_mtime_ns] for found in files])


def _write(path: Path, page: str) -> Path:
    try:
        atomic_write(path, page)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be written ({error.strerror}); name another file with --out") from error
    return path


@contextmanager
def reported(run: Path) -> Iterator[None]:
    """Whatever ends the block, the run gets its report. A report that fails is said once and fails nothing else."""
    try:
        yield
    finally:
        try:
            write_report(run)
        except Exception as error:  # a boundary: what was trained is worth more than a page about it
            with Progress(f"{run / REPORT} could not be made") as progress:
                progress.note(f"{type(error).__name__}: {error}")
