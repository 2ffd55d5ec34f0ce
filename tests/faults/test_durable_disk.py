"""A disk that is full, and lines that a kill cut in two."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from chaos import ending_of, events_of, lines_of

import draftsmith.training.checkpoint as checkpoint_module
from draftsmith.observe.lines import LineLog
from draftsmith.training import load_checkpoint
from helpers import Finished


def test_lines_that_a_full_disk_refuses_wait_and_are_written_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = LineLog(tmp_path / "lines.jsonl")
    log.append({"n": 1})
    original, full = os.write, [True]

    def write(file: int, text: bytes) -> int:
        if full[0]:
            raise OSError(28, "No space left on device")
        return original(file, text[:5])

    monkeypatch.setattr(os, "write", write)
    log.append({"n": 2})
    log.append({"n": 3})
    with pytest.raises(OSError, match="No space left"):
        log.sync()
    assert log.num_bytes == 27
    full[0] = False
    log.sync()
    log.close()
    assert lines_of(tmp_path / "lines.jsonl") == [{"n": 1}, {"n": 2}, {"n": 3}]


@pytest.mark.parametrize("torn", [b"", b'{"n": 2', b'{"n": 2}\n{"n"', b"x" * 200_000])
def test_a_half_line_at_the_end_is_cut_off_when_a_log_is_opened(torn: bytes, tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_bytes(b'{"n": 1}\n' + torn)
    log = LineLog(path)
    log.append({"n": 9})
    log.close()
    assert [line["n"] for line in lines_of(path)] in ([1, 9], [1, 2, 9])


def full_disk(monkeypatch: pytest.MonkeyPatch, steps: range) -> None:
    """These steps cannot be saved."""
    original = checkpoint_module.save_file

    def save(tensors: Any, path: Path) -> None:
        if any(f".step-{step:06d}" in str(path) for step in steps):
            raise OSError(28, "No space left on device")
        original(tensors, path)

    monkeypatch.setattr(checkpoint_module, "save_file", save)


SAVING = ("checkpoint.every_steps=2", "checkpoint.every_minutes=0")


def test_a_disk_that_is_full_for_a_while_is_an_alarm_and_a_retry(
    train: Callable[..., tuple[Finished, Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    full_disk(monkeypatch, range(4, 5))
    done, run = train(*SAVING)
    assert done.code == 0, done.err
    assert "step 4 could not be saved" in done.err
    assert "No space left on device" in done.err
    assert "so far step 2 is saved" in done.err
    assert [event["step"] for event in events_of(run, "checkpoint_failed")] == [4]
    assert load_checkpoint(run)[1]["step"] == 8


def test_a_disk_that_stays_full_stops_the_run_when_two_intervals_are_lost_and_it_goes_on_later(
    train: Callable[..., tuple[Finished, Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, undisturbed = train(*SAVING, name="undisturbed")
    with monkeypatch.context() as patched:
        full_disk(patched, range(3, 99))
        done, run = train(*SAVING)
    assert done.code == 2
    assert "No space left on device" in done.err
    assert "step 2 has been saved for two intervals, so training stops at step" in done.err
    assert load_checkpoint(run)[1]["step"] == 2
    done, run = train(*SAVING)
    assert done.code == 0, done.err
    assert ending_of(run) == ending_of(undisturbed)
