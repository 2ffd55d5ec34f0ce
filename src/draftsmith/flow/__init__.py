"""Concurrency: stages that run at different speeds, ordered, bounded in memory, and honest about who is slow.

Knows nothing about models and needs the standard library only. The contract is in docs/design/flow.md.
"""

from draftsmith.flow.accounts import FlowStats, StageStats
from draftsmith.flow.background import Background, Outcome
from draftsmith.flow.best_effort import BestEffort
from draftsmith.flow.crew import Returning
from draftsmith.flow.pages import pages
from draftsmith.flow.pipeline import Output, Pipeline, once
from draftsmith.flow.pool import as_completed
from draftsmith.flow.processes import process_workers
from draftsmith.flow.program import Program, program
from draftsmith.flow.verdict import Verdict, shares, verdict

__all__ = [
    "Background",
    "BestEffort",
    "FlowStats",
    "Outcome",
    "Output",
    "Pipeline",
    "Program",
    "Returning",
    "StageStats",
    "Verdict",
    "as_completed",
    "once",
    "pages",
    "process_workers",
    "program",
    "shares",
    "verdict",
]
