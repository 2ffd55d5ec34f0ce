"""report.html of a run: at its end however it ends, and whenever somebody asks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from draftsmith.errors import CheckpointError
from draftsmith.files import atomic_write
from draftsmith.observe import Progress
from draftsmith.report import read_run, render_report

REPORT = "report.html"


def write_report(run: Path, destination: Path | None = None) -> Path:
    """Make the page of a run and return where it is. Raises CheckpointError if it cannot be written."""
    path = destination or run / REPORT
    page = render_report(read_run(run))
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
