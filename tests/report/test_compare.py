"""Runs side by side, in the terminal and on a page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from journals import step_line, write_run

from draftsmith.report import compare_runs, read_run
from helpers import draftsmith


def two_runs(tmp_path: Path) -> list[Path]:
    summaries = [
        {
            "sets": {"holdout": {"length": 2.5, "by_slot": [0.8, 0.5]}},
            "speedup": 1.2,
            "num_lossless": 3,
            "num_lossless_checked": 3,
        },
        {"sets": {"holdout": {"length": 2.0, "by_slot": [0.7, 0.3]}}, "speedup": 1.4},
    ]
    runs = [
        write_run(tmp_path / name, [step_line(i, loss=loss) for i in range(60)], summary=summary)
        for name, loss, summary in zip(("first", "second"), (2.0, 1.5), summaries, strict=True)
    ]
    (runs[1] / "config.toml").write_text(
        'seed = 1\n[batching]\norder = "shuffle"\nmax_tokens = 1024\n', encoding="utf-8"
    )
    return runs


def test_the_best_of_every_figure_is_marked_and_settings_that_agree_are_left_out(tmp_path: Path) -> None:
    found = compare_runs([read_run(run) for run in two_runs(tmp_path)])
    best = {row.name: row.best for row in found.figures}
    assert best["loss, last tenth"] == 1
    assert best["tokens per target forward, holdout"] == 0
    assert best["measured speed-up"] == 1
    assert best["steps"] is None
    assert {row.name: row.values for row in found.settings} == {
        "seed": ("0", "1"),
        "batching.order": ("quota", "shuffle"),
    }


def test_compare_prints_a_table_and_writes_a_page(tmp_path: Path) -> None:
    runs = two_runs(tmp_path)
    done = draftsmith("compare", *runs, "--out", tmp_path / "page.html")
    assert done.code == 0, done.err
    assert "batching.order" in done.out
    assert "first" in done.out
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "2 runs side by side" in page
    assert "Settings that differ" in page


def test_one_run_compared_with_an_empty_one_leaves_gaps(tmp_path: Path) -> None:
    runs = [two_runs(tmp_path)[0], write_run(tmp_path / "empty")]
    found = compare_runs([read_run(run) for run in runs])
    assert {row.name: row.values for row in found.figures}["loss, last tenth"] == ("2", "–")
    assert draftsmith("compare", *runs, "--out", tmp_path / "page.html").code == 0


def test_runs_of_one_name_are_told_apart_by_their_paths(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / parent / "run") for parent in ("a", "b")]
    assert compare_runs([read_run(run) for run in runs]).names == tuple(str(run) for run in runs)


def test_one_run_alone_is_refused_also_when_it_is_named_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = two_runs(tmp_path)[0]
    monkeypatch.chdir(tmp_path)
    for given in ([run], [run, "first"], [run, run / ".." / "first"]):
        done = draftsmith("compare", *given, "--out", tmp_path / "page.html")
        assert done.code == 2
        assert f"draftsmith report {run}" in done.err
    assert not (tmp_path / "page.html").exists()


def test_what_is_no_run_is_named(tmp_path: Path) -> None:
    done = draftsmith("compare", two_runs(tmp_path)[0], tmp_path / "nothing")
    assert done.code == 2
    assert "nothing" in done.err
    assert json.loads((tmp_path / "first" / "summary.json").read_text(encoding="utf-8"))
