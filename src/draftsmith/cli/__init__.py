"""Commands and exit codes: 0 done, 2 the user can mend it, 70 training hung, 130 and 143 stopped by a signal.

Heavy imports happen inside commands, so that --help answers at once.
"""

from __future__ import annotations

import signal
import sys
import traceback

import typer

from draftsmith.cli import data, observing, reporting, serving, training, verifying
from draftsmith.cli.app import app
from draftsmith.errors import DraftsmithError, Interrupted
from draftsmith.redaction import redacted

__all__ = ["app", "data", "main", "observing", "reporting", "serving", "training", "verifying"]


def main() -> None:
    """Entry point: turns errors that people can act on into one line and exit code 2."""
    signal.signal(signal.SIGTERM, _on_sigterm)
    try:
        app()
    except KeyboardInterrupt:
        _fail("stopped; nothing half-written is left behind", 130)
    except DraftsmithError as error:
        _fail(str(error), 2)
    except Interrupted as stop:
        _fail(str(stop), stop.exit_code)
    except OSError as error:
        _fail(f"{error.filename or 'the disk'}: {error.strerror or error}", 2)
    except SystemExit as stop:
        if stop.code == 130:  # what Typer makes of Ctrl-C
            _fail("stopped; nothing half-written is left behind", 130)
        raise
    except Exception:  # a bug: it keeps its traceback, but no credential
        typer.echo(redacted(traceback.format_exc()), err=True)
        sys.exit(1)


def _on_sigterm(_number: int, _frame: object) -> None:
    """Leave by an exception, so that whatever is half-written is cleaned up on the way out."""
    raise Interrupted(signal.SIGTERM, "nothing half-written is left behind")


def _fail(message: str, code: int) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # nothing is left to clean up: the next one ends the process at once
    typer.echo(redacted(f"draftsmith: {message}"), err=True)
    sys.exit(code)
