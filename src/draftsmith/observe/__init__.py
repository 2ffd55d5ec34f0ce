"""What a run says while it runs: JSON lines that survive a kill, progress for people; and how it is asked to stop."""

from draftsmith.observe.devices import fast_dtype
from draftsmith.observe.environment import describe_environment, memory_limit_bytes, peak_memory_bytes
from draftsmith.observe.journal import Journal
from draftsmith.observe.live import TrainingView
from draftsmith.observe.picture import Picture, duration, one_line, size
from draftsmith.observe.progress import Progress, silenced
from draftsmith.observe.signals import StopRequest
from draftsmith.observe.sinks import check_sinks, open_sinks
from draftsmith.observe.snapshot import Snapshot
from draftsmith.observe.tail import Row, Tail, row_of
from draftsmith.observe.tally import Tally

__all__ = [
    "Journal",
    "Picture",
    "Progress",
    "Row",
    "Snapshot",
    "StopRequest",
    "Tail",
    "Tally",
    "TrainingView",
    "check_sinks",
    "describe_environment",
    "duration",
    "fast_dtype",
    "memory_limit_bytes",
    "one_line",
    "open_sinks",
    "peak_memory_bytes",
    "row_of",
    "silenced",
    "size",
]
