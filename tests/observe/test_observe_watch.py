"""Watching a run through its files: whatever state they are in, and without touching them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from observe_rows import event_row, metrics_row, write_rows

from draftsmith.errors import CheckpointError
from draftsmith.observe import Snapshot, Tail
from draftsmith.run.lock import is_held
from draftsmith.run.watching import RunFiles
from helpers import draftsmith


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run that is training: ten steps, written just now."""
    (tmp_path / "config.toml").write_text('[train]\noptimizer = "adamw"\nlr = 1e-3\n', encoding="utf-8")
    write_rows(tmp_path / "events.jsonl", [event_row("start", 1000.0)])
    write_rows(tmp_path / "metrics.jsonl", [metrics_row(step) for step in range(1, 11)])
    return tmp_path


def seen(run: Path, now: float | None = None) -> Snapshot:
    return RunFiles(run).snapshot(time.time() if now is None else now)


def tree(run: Path) -> dict[str, tuple[int, bytes]]:
    return {str(p): (p.stat().st_mtime_ns, p.read_bytes() if p.is_file() else b"") for p in sorted(run.rglob("*"))}


def test_a_running_run_is_shown_as_its_rows_say(run: Path) -> None:
    found = seen(run, now=1010.0)
    assert (found.phase, found.step, found.epoch, found.num_skipped) == ("training", 10, 0, 0)
    assert found.loss == pytest.approx(3.0 - 0.01 * 5.5)
    assert [bucket for bucket, _ in found.loss_by_bucket] == [0, 1, 2]
    assert found.loss_by_bucket[0][1] == pytest.approx(3.0 - 0.06)  # steps 3, 6, 9
    assert found.acceptance == pytest.approx(1.055)
    assert found.lr == pytest.approx(5e-4)
    assert (found.elapsed_s, found.left_s) == (10.0, pytest.approx(90.0))


def test_a_measurement_on_held_out_prompts_is_shown_and_hides_nothing(run: Path) -> None:
    measured = {"time": 1010.5, "step": 10, "epoch": 0, "seq": 11, "held_out_acceptance": 1.75, "measured_s": 0.5}
    with (run / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(measured) + "\n")
    found = seen(run, now=1010.0)
    assert (found.held_out, found.step, found.progress, found.lr) == (1.75, 10, 0.1, pytest.approx(5e-4))
    assert "held out 1.75" in draftsmith("watch", run, "--once").out


def test_rows_that_come_later_are_added_and_a_half_line_is_left_for_later(run: Path) -> None:
    files = RunFiles(run)
    assert files.snapshot(1010.0).step == 10
    whole = json.dumps(metrics_row(11)) + "\n"
    with (run / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write(whole[:30])
        file.flush()
        assert files.snapshot(1011.0).step == 10
        file.write(whole[30:])
        file.flush()
        found = files.snapshot(1011.0)
    assert (found.step, found.notes) == (11, ())


def test_a_run_killed_in_the_middle_of_a_line_and_resumed_shows_what_can_be_read(run: Path) -> None:
    with (run / "metrics.jsonl").open("ab") as file:
        file.write(b'{"time": 1011.0, "step": 11, "lo')  # killed here; the next process appends
        file.write(json.dumps(metrics_row(11)).encode() + b"\n")
        file.write(b"\xff\xfe\n[1, 2]\n" + json.dumps(metrics_row(12)).encode() + b"\n")
    found = seen(run, now=1012.0)
    assert found.step == 12
    assert found.notes == ("3 broken lines were left out",)


def test_a_file_that_was_cut_back_is_read_from_its_beginning(run: Path) -> None:
    files = RunFiles(run)
    files.snapshot(1010.0)
    write_rows(run / "metrics.jsonl", [metrics_row(step, skipped=True) for step in range(1, 4)])
    found = files.snapshot(1010.0)
    assert (found.step, found.num_skipped) == (3, 3)


def test_a_run_that_has_not_begun_says_so(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("seed = 0\n", encoding="utf-8")
    found = seen(tmp_path)
    assert (found.phase, found.step, found.loss) == ("not begun", 0, None)
    shown = draftsmith("watch", tmp_path, "--once")
    assert shown.code == 0
    assert "not begun" in shown.out


@pytest.mark.parametrize(
    ("last", "phase"),
    [
        (event_row("end", 1011.0, step=10), "ended"),
        (event_row("interrupted", 1011.0, signal=2), "stopped by SIGINT"),
        (event_row("failed", 1011.0, error="stage target:\n\x1b[31mbroken"), "failed: stage target:  [31mbroken"),
    ],
)
def test_a_run_that_is_over_says_how_and_watching_ends(run: Path, last: dict[str, Any], phase: str) -> None:
    write_rows(run / "events.jsonl", [event_row("start", 1000.0), last])
    found = seen(run)
    assert found.phase == phase
    assert found.elapsed_s == 10.0  # not counted on
    shown = draftsmith("watch", run)  # returns by itself
    assert shown.code == 0
    assert phase in shown.out


def test_a_run_that_is_resumed_after_its_end_trains_again(run: Path) -> None:
    ended = [event_row("start", 1000.0), event_row("interrupted", 1011.0, signal=15)]
    write_rows(run / "events.jsonl", [*ended, event_row("resume", 1020.0, progress=0.1)])
    write_rows(run / "metrics.jsonl", [*(metrics_row(s) for s in range(1, 11)), metrics_row(11, time=1021.0)])
    found = seen(run, now=1021.0)
    assert found.phase == "training"
    assert found.left_s == pytest.approx(89.0)  # one per cent took one second: counted from the resume


def test_a_run_that_went_silent_is_called_dead_but_not_while_it_measures(run: Path) -> None:
    long_ago = time.time() - 3600
    write_rows(run / "events.jsonl", [event_row("start", long_ago - 10)])
    write_rows(run / "metrics.jsonl", [metrics_row(step, time=long_ago - 10 + step) for step in range(1, 11)])
    for name in ("metrics.jsonl", "events.jsonl", "config.toml"):
        os.utime(run / name, (long_ago, long_ago))
    assert seen(run).phase == "silent for 1:00:00: it has died, or hangs"
    (run / "summary.json").write_text("{}", encoding="utf-8")
    assert seen(run).phase == "measuring"


def test_a_run_that_was_killed_is_called_dead_at_once(run: Path) -> None:
    holder = (
        "import sys, time; from pathlib import Path; from draftsmith.run.lock import locked\n"
        "with locked(Path(sys.argv[1])): print('held', flush=True); time.sleep(60)"
    )
    assert is_held(run) is None  # no lock, nothing known
    with subprocess.Popen([sys.executable, "-c", holder, str(run)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        assert is_held(run) is True
        assert seen(run, now=1010.0).phase == "training"
        process.kill()
    assert is_held(run) is False
    found = seen(run)
    assert found.phase.startswith("died: its process is gone, and wrote last 0:0")
    shown = draftsmith("watch", run)  # nothing more will come: it ends
    assert shown.code == 0
    assert "died" in shown.out
    (run / "LOCK").write_text('{"pid": 1, "host": "another machine"}', encoding="utf-8")
    assert is_held(run) is None


def test_a_run_of_another_version_shows_what_it_has(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('train = "yes"\n[[broken', encoding="utf-8")
    strange = [
        {"step": "seven", "loss": None, "bucket": [1], "flow": {"stages": 3}},
        {"time": "noon", "step": 3, "loss": "nan", "bucket": {}},
        {"step": 4, "loss": 1.5, "bucket": 0, "lr_factor": True, "epoch": 1e300, "progress": -5, "time": 10.0},
        {},
        {"step": 5, "flow": {"stages": {"x": {}}}},
    ]
    write_rows(tmp_path / "metrics.jsonl", strange)
    write_rows(tmp_path / "events.jsonl", [{}, {"event": 3}, {"event": "interrupted", "signal": "x"}])
    found = seen(tmp_path)
    assert (found.step, found.loss, found.flow, found.lr) == (5, 1.5, None, None)
    assert draftsmith("watch", tmp_path, "--once").code == 0


def test_what_is_not_a_run_is_refused_by_name(tmp_path: Path) -> None:
    for path, reason in ((tmp_path / "none", "is not a directory"), (tmp_path, "is not a run: it holds none of")):
        refused = draftsmith("watch", path)
        assert refused.code == 2
        assert f"{path} {reason}" in refused.err
        with pytest.raises(CheckpointError):
            RunFiles(path)


def test_watching_changes_nothing_in_the_run_directory(run: Path) -> None:
    before = tree(run)
    run.chmod(0o555)
    try:
        assert draftsmith("watch", run, "--once").code == 0
    finally:
        run.chmod(0o755)
    assert tree(run) == before


def test_a_real_run_is_shown_at_its_end(finished_run: Path) -> None:
    before = tree(finished_run)
    shown = draftsmith("watch", finished_run)
    assert shown.code == 0
    assert tree(finished_run) == before
    assert "ended" in shown.out
    assert "step 8" in shown.out
    assert "loss " in shown.out


def test_reading_on_costs_only_what_is_new(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "rows.jsonl", [{"step": step} for step in range(20_000)])
    tail = Tail(path)
    start = time.perf_counter()
    assert len(tail.read()) == 20_000
    first_s = time.perf_counter() - start
    start = time.perf_counter()
    assert [tail.read() for _ in range(20)] == [[]] * 20
    assert (time.perf_counter() - start) / 20 < first_s / 10
