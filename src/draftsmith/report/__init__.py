"""One self-contained HTML page that explains a run, from nothing but the files that the run left."""

from draftsmith.report.page import render_report
from draftsmith.report.record import RunRecord, read_run

__all__ = ["RunRecord", "read_run", "render_report"]
