"""A run is read as it is: empty, torn, resumed, of another version; and never changed by reading."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from journals import step_line, write_run

from draftsmith.errors import CheckpointError
from draftsmith.report import read_run
from draftsmith.report.curves import extremes, part_edges, part_means


def test_a_run_without_a_step_reads_as_empty(tmp_path: Path) -> None:
    record = read_run(write_run(tmp_path / "run"))
    assert len(record.steps) == 0
    assert record.steps.x.shape == (0,)
    assert record.remarks == ()


@pytest.mark.parametrize("kind", ["missing", "empty", "file"])
def test_what_is_no_run_is_refused_by_name(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "thing"
    if kind == "empty":
        path.mkdir()
    if kind == "file":
        path.write_text("x", encoding="utf-8")
    with pytest.raises(CheckpointError, match="thing"):
        read_run(path)


def test_a_torn_last_line_is_left_out_and_said(tmp_path: Path) -> None:
    whole = json.dumps(step_line(5))
    for cut in range(1, len(whole), 5):
        record = read_run(write_run(tmp_path / "run", map(step_line, range(5)), torn=whole[:cut]))
        assert len(record.steps) == 5
        assert "middle of a line" in record.remarks[0]


def test_a_whole_last_line_without_its_newline_counts(tmp_path: Path) -> None:
    record = read_run(write_run(tmp_path / "run", map(step_line, range(5)), torn=json.dumps(step_line(5))))
    assert len(record.steps) == 6
    assert not record.remarks


def test_unreadable_lines_are_counted_and_the_others_kept(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", map(step_line, range(4)))
    with (run / "metrics.jsonl").open("ab") as file:
        file.write(b'\x00\x00\x00\n{"time": 1, "lo{"time": 2}\n[1, 2]\n"text"\n' + b"[" * 100_000 + b"\n")
        file.write(json.dumps(step_line(4)).encode() + b"\n")
    record = read_run(run)
    assert len(record.steps) == 5
    assert "5 of 10 lines" in record.remarks[0]


def test_steps_done_again_after_a_restart_replace_those_that_were_lost(tmp_path: Path) -> None:
    lost = [step_line(i) for i in range(10)]
    again = [step_line(i, loss=9.0) for i in range(6, 12)]
    steps = read_run(write_run(tmp_path / "run", [*lost, *again])).steps
    assert steps.step.tolist() == list(range(1, 13))
    assert steps.loss[6:].tolist() == [9.0] * 6
    assert steps.num_redone == 4


def test_an_older_version_without_most_fields_is_read_with_what_it_has(tmp_path: Path) -> None:
    record = read_run(write_run(tmp_path / "run", [{"step": i, "loss": 1.0} for i in range(4)]))
    assert record.steps.loss.tolist() == [1.0] * 4
    assert np.isnan(record.steps.acceptance).all()
    assert (record.steps.bucket == -1).all()


def test_values_of_any_kind_become_numbers_or_nothing(tmp_path: Path) -> None:
    odd = ["nan", "inf", None, True, {}, [], "word", 10**400, -1]
    lines = [step_line(i, loss=value, bucket=value, accuracy_by_slot=value) for i, value in enumerate(odd)]
    steps = read_run(write_run(tmp_path / "run", lines)).steps
    assert len(steps) == len(odd)
    assert [math.isfinite(value) for value in steps.loss] == [False] * 8 + [True]
    assert (steps.bucket == -1).all()


def test_batches_of_one_optimiser_step_stand_side_by_side(tmp_path: Path) -> None:
    lines = [step_line(i, step=1 + i // 2) for i in range(6)]
    assert read_run(write_run(tmp_path / "run", lines)).steps.x.tolist() == [1, 1.5, 2, 2.5, 3, 3.5]


def test_reducing_points_never_loses_an_extreme() -> None:
    rng = np.random.default_rng(0)
    curves = [rng.normal(size=50_000), rng.normal(size=50_000)]
    curves[0][[7, 31_234]] = 90, -90
    curves[1][25_000:25_010] = np.nan
    chosen = extremes(curves, 2_000)
    assert len(chosen) <= 2_000
    assert (np.diff(chosen) > 0).all()
    assert (chosen[0], chosen[-1]) == (0, 49_999)
    for curve in curves:
        for part in np.array_split(np.arange(50_000), 499):  # the parts that 2,000 points allow, or finer
            lowest, highest = np.nanmin(curve[part]), np.nanmax(curve[part])
            near = curve[chosen[(chosen >= part[0] - 101) & (chosen <= part[-1] + 101)]]
            assert np.nanmin(near) <= lowest
            assert np.nanmax(near) >= highest


def test_means_of_parts_are_means_over_what_is_finite() -> None:
    values = np.array([1.0, 3.0, np.nan, 5.0, np.inf, np.nan])
    assert part_means(values, part_edges(6, 3)).tolist()[:2] == [2.0, 5.0]
    assert math.isnan(part_means(values, part_edges(6, 3))[2])
    assert part_means(values[:2], part_edges(2, 1), np.array([3.0, 1.0])).tolist() == [1.5]
