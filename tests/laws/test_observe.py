"""What a run says survives a kill, reads as JSON, and a signal asks before it acts."""

from __future__ import annotations

import io
import json
import os
import signal
from pathlib import Path

import pytest
from rich.console import Console

from draftsmith.observe import Journal, Progress, StopRequest, describe_environment, peak_memory_bytes


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_every_line_is_on_disk_as_soon_as_it_is_written(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        journal.metrics(step=1, loss=2.5)
        assert lines(tmp_path / "metrics.jsonl")[0]["loss"] == 2.5
        journal.event("start", seed=0)
        assert lines(tmp_path / "events.jsonl")[0]["event"] == "start"


def test_a_second_journal_appends(tmp_path: Path) -> None:
    for step in (1, 2):
        with Journal(tmp_path) as journal:
            journal.metrics(step=step)
    assert [line["step"] for line in lines(tmp_path / "metrics.jsonl")] == [1, 2]


def test_numbers_that_json_lacks_are_written_as_text(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        journal.metrics(loss=float("nan"), by_slot=(1.0, float("-inf")))
    (line,) = lines(tmp_path / "metrics.jsonl")
    assert (line["loss"], line["by_slot"]) == ("nan", [1.0, "-inf"])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_is_remembered_and_the_second_acts(number: signal.Signals) -> None:
    before = signal.signal(number, signal.default_int_handler)
    try:
        with StopRequest() as stop:
            assert stop.received is None
            os.kill(os.getpid(), number)
            assert stop.received == number
            with pytest.raises(KeyboardInterrupt):
                os.kill(os.getpid(), number)
        assert signal.getsignal(number) is signal.default_int_handler
    finally:
        signal.signal(number, before)


def test_without_a_signal_the_handlers_are_as_before() -> None:
    before = signal.getsignal(signal.SIGINT)
    with StopRequest():
        assert signal.getsignal(signal.SIGINT) != before
    assert signal.getsignal(signal.SIGINT) == before


def test_progress_outside_a_terminal_prints_the_title_and_few_lines() -> None:
    text = io.StringIO()
    asked = []

    def line() -> str:
        asked.append(1)
        return "never made"

    with Progress("training [1]", console=Console(file=text), seconds_between=1e9) as progress:
        for _ in range(100):
            progress.show(line)
    assert text.getvalue() == "training [1] ...\n"
    assert not asked  # text that is not shown is not made either
    with Progress("training", console=Console(file=text), seconds_between=0) as progress:
        progress.show("50%")
    assert text.getvalue().endswith("training: 50%\n")


def test_the_environment_names_versions_hardware_and_memory() -> None:
    found = describe_environment()
    assert {"torch", "transformers", "numpy"} <= found["packages"].keys()
    assert found["cores"] >= 1
    assert found["memory_bytes"] > peak_memory_bytes() > 10**7
    json.dumps(found, allow_nan=False)
