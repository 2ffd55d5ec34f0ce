"""The page holds everything and asks for nothing, whatever state its run is in."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from journals import START, flow_record, step_line, write_run

from draftsmith.report import read_run, render_report
from draftsmith.report.answers import answers_of
from draftsmith.report.happenings import event_lines
from draftsmith.report.words import status_of
from draftsmith.run.lock import locked
from draftsmith.run.reporting import write_report
from helpers import CONFIGS, draftsmith

VENDOR = Path(status_of.__code__.co_filename).parent / "vendor"


def figures_of(page: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="figures">(.*?)</script>', page, flags=re.DOTALL)
    assert found
    return dict(json.loads(found[1]))


def column(packed: dict[str, str]) -> np.ndarray:
    return np.frombuffer(base64.b64decode(packed["base64"]), dtype=packed["kind"])


def test_training_leaves_a_report(finished_run: Path) -> None:
    page = (finished_run / "report.html").read_text(encoding="utf-8")
    figures = figures_of(page)
    assert "Finished" in page
    assert "of 3 prompts" not in page
    assert column(figures["x"]).tolist() == list(range(1, 9))
    record = read_run(finished_run)
    assert np.array_equal(column(figures["loss"]), record.steps.loss.astype(np.float32))
    assert np.isfinite(record.steps.num_slots).all()
    assert "quota" in page


def test_the_page_names_no_address_that_a_browser_would_fetch(finished_run: Path) -> None:
    page = (finished_run / "report.html").read_text(encoding="utf-8")
    assert not re.search(r"""(?:src|href)\s*=\s*["'](?!#)""", page)
    assert "@import" not in page
    assert not re.search(r"url\((?!data:)", page)


def test_a_report_can_be_made_at_any_time_and_somewhere_else(finished_run: Path, tmp_path: Path) -> None:
    done = draftsmith("report", finished_run, "--out", tmp_path / "page.html")
    assert done.code == 0, done.err
    assert str(tmp_path / "page.html") in done.out
    assert figures_of((tmp_path / "page.html").read_text(encoding="utf-8"))["num_buckets"] >= 1


STATES: dict[str, Callable[[Path], Path]] = {
    "empty": lambda run: write_run(run),
    "one step": lambda run: write_run(run, [step_line(0)]),
    "torn": lambda run: write_run(run, map(step_line, range(20)), torn='{"time": 1, "lo'),
    "older": lambda run: write_run(run, [{"step": i, "loss": 1.0} for i in range(30)]),
    "oldest": lambda run: write_run(run, [{"loss": 1.0 / (i + 1)} for i in range(30)]),
    "not finite": lambda run: write_run(run, [step_line(i, loss="nan", grad_norm="inf") for i in range(9)]),
    "odd flow": lambda run: write_run(run, [step_line(i, flow={"stages": {"a": 3}, "wall_s": 1}) for i in range(9)]),
    "odd summary": lambda run: write_run(
        run, map(step_line, range(9)), summary={"sets": {}, "acceptance_length": "nan", "flow": [], "speedup": None}
    ),
    "odd events": lambda run: write_run(
        run,
        map(step_line, range(9)),
        events=[{}, {"event": 3, "step": "x", "time": "y"}, {"event": "resume", "step": 4}],
    ),
}


@pytest.mark.parametrize("state", STATES)
def test_a_run_in_any_state_gets_a_page(state: str, tmp_path: Path) -> None:
    figures_of(render_report(read_run(STATES[state](tmp_path / "run"))))


def test_names_and_texts_of_a_run_cannot_become_markup(tmp_path: Path) -> None:
    evil = "</script><script>alert(1)</script><b>&"
    events = [{"time": START, "event": evil, "error": evil, "step": 3}]
    run = write_run(tmp_path / "run", map(step_line, range(5)), events=events, summary={"target": evil})
    (run / "environment.json").write_text(json.dumps({"target": evil}), encoding="utf-8")
    page = render_report(read_run(run))
    assert "<script>alert" not in page
    assert figures_of(page)["events"] == [{"x": 3, "kind": evil}]


@pytest.mark.parametrize(
    ("last", "age_s", "kind"),
    [
        ("end", 10, "finished"),
        ("interrupted", 10, "interrupted"),
        ("failed", 10, "failed"),
        ("start", 10, "training"),
        ("start", 4_000, "silent"),
    ],
)
def test_the_status_is_what_the_last_event_says_or_the_clock(
    tmp_path: Path, last: str, age_s: float, kind: str
) -> None:
    run = write_run(tmp_path / "run", map(step_line, range(5)), events=[{"event": "start"}, {"event": last, "step": 5}])
    record = read_run(run)
    assert status_of(record, now=record.modified + age_s).kind == kind


def test_a_run_whose_process_is_gone_is_not_said_to_train(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", map(step_line, range(5)), events=[{"event": "start"}])
    with locked(run):
        assert "Still training" in write_report(run).read_text(encoding="utf-8")
    assert "fell silent" in write_report(run).read_text(encoding="utf-8")


def test_stages_are_taken_apart_into_what_happened_between_two_records(tmp_path: Path) -> None:
    flows = [
        flow_record(10, training=(1, 0, 0)),
        flow_record(20, training=(0.5, 0.5, 0)),
        flow_record(5, training=(0, 0, 1)),
    ]
    run = write_run(tmp_path / "run", [step_line(i, flow=flow) for i, flow in enumerate(flows)])
    (stage,) = figures_of(render_report(read_run(run)))["stages"]["parts"]
    assert stage["shares"] == [[1, 0, 0], [0, 1, 0], [0, 0, 1]]


def test_the_order_is_judged_once_an_epoch_is_through(tmp_path: Path) -> None:
    events = [{"event": "start", "bucket_batches": [4, 4, 4], "bucket_edges": [8, 16, 32]}]
    part = render_report(read_run(write_run(tmp_path / "part", map(step_line, range(7)), events=events)))
    assert "7 of the 12 batches" in part
    whole = render_report(read_run(write_run(tmp_path / "whole", map(step_line, range(12)), events=events)))
    assert "train with this order" in whole


def test_what_repeats_is_told_once(tmp_path: Path) -> None:
    events = [
        {"event": "start"},
        *({"event": "checkpoint", "step": i} for i in range(0, 50, 10)),
        {"event": "resume", "step": 40},
    ]
    lines = event_lines(read_run(write_run(tmp_path / "run", map(step_line, range(50)), events=events)))
    assert [line.kind for line in lines] == ["start", "checkpoint", "resume"]
    assert lines[1].facts == "5 times, steps 0 to 40"


def test_acceptance_measured_while_training_is_shown_and_is_no_step(tmp_path: Path) -> None:
    measured = [
        {"step": step, "epoch": 0, "held_out_acceptance": value} for step, value in ((20, 2.5), (10, 2.0), (20, 2.6))
    ]
    lines = [*map(step_line, range(50)), *measured, {"held_out_acceptance": 9.0}, {"step": 3}]
    record = read_run(write_run(tmp_path / "run", lines))
    assert len(record.steps) == 50
    page = render_report(record)
    unknown = [None, None]
    expected = {"x": [10, 20], "length": [2.0, 2.6], "teacher_forced": unknown, "gap": unknown}
    assert figures_of(page)["held_out"] == expected
    assert "chart-gap" not in page.split("<script")[0]


def test_teacher_forced_and_free_running_acceptance_and_their_gap_are_curves(tmp_path: Path) -> None:
    measured = [
        {"step": step, "held_out_acceptance": free, "held_out_teacher_forced": forced}
        for step, free, forced in ((10, 1.5, 1.75), (20, 2.0, None), (30, 2.5, 3.0))
    ]
    page = render_report(read_run(write_run(tmp_path / "run", [*map(step_line, range(50)), *measured])))
    assert figures_of(page)["held_out"] == {
        "x": [10, 20, 30],
        "length": [1.5, 2.0, 2.5],
        "teacher_forced": [1.75, None, 3.0],
        "gap": [0.25, None, 0.5],
    }
    assert 'id="chart-gap"' in page


def test_an_answer_shows_which_tokens_were_accepted_drafts(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", map(step_line, range(9)))
    example = {
        "set": "holdout",
        "prompt": "Count <b>",
        "pieces": ["one", " two", " three", " four", " five"],
        "committed": [3, 1],
    }
    odd = [{}, {"pieces": []}, {"pieces": ["a"], "committed": [0]}, {"pieces": "abc", "committed": [1]}, 7]
    (run / "examples.json").write_text(json.dumps({"examples": [example, *odd]}), encoding="utf-8")
    record = read_run(run)
    (answer,) = answers_of(record)
    assert [(piece.kind, piece.place) for piece in answer.pieces] == [
        ("own", 0),
        ("draft", 1),
        ("draft", 2),
        ("own", 3),
        ("own", 1),
    ]
    assert answer.per_forward == 2
    page = render_report(record)
    assert "Count &lt;b&gt;" in page
    assert '<span class="piece draft" title="token 2 of its verification"> three</span>' in page


def test_a_directory_that_cannot_be_written_says_so_and_offers_another_file(
    finished_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_arguments: object, **_settings: object) -> None:
        raise PermissionError(30, "Read-only file system")

    monkeypatch.setattr("draftsmith.run.reporting.atomic_write", refused)
    done = draftsmith("report", finished_run)
    assert done.code == 2
    assert "Read-only file system" in done.err
    assert "--out" in done.err


def test_a_report_that_fails_fails_no_training(
    settings_of_run: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_arguments: object) -> str:
        raise RuntimeError("no page today")

    monkeypatch.setattr("draftsmith.run.reporting.render_report", broken)
    settings = [*settings_of_run, "train.max_steps=2", "eval.num_prompts=0", "eval.num_timed=0"]
    done = draftsmith("train", CONFIGS / "tiny-cpu.toml", *settings, f"run.dir={tmp_path / 'run'}")
    assert done.code == 0, done.err
    assert done.err.count("no page today") == 1
    assert not (tmp_path / "run" / "report.html").exists()


def test_vendored_files_are_those_that_their_readme_names() -> None:
    text = (VENDOR / "uplot" / "README.md").read_text(encoding="utf-8")
    for name, digest in re.findall(r"\| (\S+) \| ([0-9a-f]{64}) \|", text):
        assert hashlib.sha256((VENDOR / "uplot" / name).read_bytes()).hexdigest() == digest
