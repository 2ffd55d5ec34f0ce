"""What a run says while it runs: JSON lines that survive a kill, progress for people; and how it is asked to stop."""

from draftsmith.observe.environment import describe_environment, memory_limit_bytes, peak_memory_bytes
from draftsmith.observe.journal import Journal
from draftsmith.observe.progress import Progress
from draftsmith.observe.signals import StopRequest

__all__ = ["Journal", "Progress", "StopRequest", "describe_environment", "memory_limit_bytes", "peak_memory_bytes"]
