"""The loss curve explains itself: trend, buckets, rhythm, levels, jumps, spikes, plateaus. Pure numpy."""

from draftsmith.report.diagnosis.diagnose import Curve, Diagnosis, diagnose

__all__ = ["Curve", "Diagnosis", "diagnose"]
