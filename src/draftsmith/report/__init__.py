"""One self-contained HTML page that explains a run, from nothing but the files that the run left."""

from draftsmith.report.compare import Comparison, Row, compare_runs, render_comparison
from draftsmith.report.page import render_report
from draftsmith.report.record import RUN_FILES, RunRecord, read_run
from draftsmith.report.serve import LivePage, open_server

__all__ = [
    "RUN_FILES",
    "Comparison",
    "LivePage",
    "Row",
    "RunRecord",
    "compare_runs",
    "open_server",
    "read_run",
    "render_comparison",
    "render_report",
]
