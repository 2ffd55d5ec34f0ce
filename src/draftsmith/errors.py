"""The errors that people see. Each message names the value, the place and the way out.

The command line turns every `DraftsmithError` into one line on stderr and exit code 2; anything else is a bug and
keeps its traceback.
"""

import signal


class DraftsmithError(Exception):
    """Base of all errors that a user can act on."""


class ConfigError(DraftsmithError):
    """A setting is unknown, missing, or contradicts another one."""


class DataError(DraftsmithError):
    """Conversations, a token store or a prompt file cannot be used as they are."""


class ModelError(DraftsmithError):
    """A target or drafter cannot be loaded, or the two do not fit together."""


class PlanError(DraftsmithError):
    """No epoch can be planned from these lengths and settings."""


class CheckpointError(DraftsmithError):
    """A checkpoint or run directory is missing, damaged or belongs to another run."""


class DivergedError(DraftsmithError):
    """Step after step gave a loss or gradient that is not finite."""


class RankError(DraftsmithError):
    """Another rank of this run has gone, hangs, or trains something else. What was saved before is whole."""


class StageError(DraftsmithError):
    """A stage of a running pipeline failed or hangs. The cause is chained; `stacks` is set where time ran out."""

    def __init__(
        self, message: str, *, stage: str = "", worker: int | None = None, item: int | None = None, stacks: str = ""
    ) -> None:
        super().__init__(message)
        self.stage = stage
        self.worker = worker
        self.item = item
        self.stacks = stacks


class WorkerLostError(StageError):
    """A worker of a stage is gone, or does not answer, and may be back. `began`: its item may be the reason."""

    def __init__(self, message: str, *, began: bool = False) -> None:
        super().__init__(message)
        self.began = began


class Interrupted(Exception):  # noqa: N818 - not an error: nothing is lost
    """A signal ended a run early, after everything that had been done was saved."""

    def __init__(self, number: int, kept: str) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}; {kept}")
        self.exit_code = 128 + number


class ExportError(DraftsmithError):
    """An exported drafter could not be written or does not read back as it was written."""


class EngineError(DraftsmithError):
    """An engine that we did not write did not start, died, or answered something else than it promises."""


class EngineMissing(EngineError):  # noqa: N818 - nothing failed: there is nothing to ask
    """An engine is not installed, or is not made for this processor."""


def first_line(error: BaseException) -> str:
    """Of what others' errors say, which is often a page; the kind of error if it says nothing."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
