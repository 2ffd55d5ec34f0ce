"""Other people's dashboards get what the journal says, and can neither hold up nor fail a run."""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from observe_rows import event_row, metrics_row

from draftsmith.config import parse_config
from draftsmith.errors import ConfigError
from draftsmith.observe import Journal, sinks
from draftsmith.observe.sinks import check_sinks, open_sinks, scalars
from helpers import CONFIGS, draftsmith, tiny_config

Row = dict[str, Any]


@contextmanager
def raising(_run: Path, _config: Row) -> Iterator[Callable[[Row], None]]:
    def write(_row: Row) -> None:
        raise ConnectionError("no route to host")

    yield write


@contextmanager
def hanging(_run: Path, _config: Row) -> Iterator[Callable[[Row], None]]:
    yield lambda _row: time.sleep(3.0)


@contextmanager
def unopenable(_run: Path, _config: Row) -> Iterator[Callable[[Row], None]]:
    raise OSError("disk full")
    yield


@pytest.fixture
def collected(monkeypatch: pytest.MonkeyPatch) -> list[Row]:
    """What a well-behaved sink named `good` received; `bad` ones stand beside it."""
    rows: list[Row] = []

    @contextmanager
    def good(_run: Path, _config: Row) -> Iterator[Callable[[Row], None]]:
        yield rows.append

    found = {"good": good, "raising": raising, "hanging": hanging, "unopenable": unopenable}
    for name, sink in found.items():
        monkeypatch.setitem(sinks.SINKS, name, sink)
    return rows


def test_rows_of_the_journal_reach_every_sink(collected: list[Row], tmp_path: Path) -> None:
    warnings: list[str] = []
    with Journal(tmp_path) as journal, open_sinks(["good"], tmp_path, {}, warn=warnings.append) as opened:
        with journal.heard_by(opened):
            journal.metrics(step=1, loss=2.5)
            journal.event("end", step=1)
        journal.metrics(step=2, loss=2.0)  # not heard any longer
    assert [row.get("loss", row.get("event")) for row in collected] == [2.5, "end"]
    assert not warnings


@pytest.mark.parametrize("bad", ["raising", "hanging", "unopenable"])
def test_a_bad_sink_warns_once_and_neither_delays_nor_fails_a_step_nor_the_sinks_beside_it(
    bad: str, collected: list[Row], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sinks, "CLOSE_S", 0.3)
    warnings: list[str] = []
    start, longest_s = time.perf_counter(), 0.0
    with open_sinks([bad, "good"], tmp_path, {}, warn=warnings.append) as opened:
        for step in range(200):
            before = time.perf_counter()
            opened.metrics(metrics_row(step))
            longest_s = max(longest_s, time.perf_counter() - before)
        opened.event(event_row("end", 1.0))
        while len(collected) < 201:
            assert time.perf_counter() - start < 10
            time.sleep(0.001)
    assert time.perf_counter() - start < 2.5  # the hanging one was not waited for
    assert longest_s < 1.0
    assert len(warnings) == 1
    assert warnings[0].startswith(f"sink {bad} ")


def test_a_run_whose_sink_fails_trains_all_the_same_and_says_so(
    collected: list[Row],
    settings_of_run: list[str],
    finished_run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sinks, "CLOSE_S", 5.0)
    monkeypatch.setitem(sinks.SINKS, "tensorboard", raising)
    run = tmp_path / "run"
    overrides = [*settings_of_run, "eval.num_prompts=0", "eval.num_timed=0", 'observe.sinks=["tensorboard"]']
    done = draftsmith("train", CONFIGS / "tiny-cpu.toml", *overrides, f"run.dir={run}")
    assert done.code == 0, done.err
    assert done.err.count("sink tensorboard failed (ConnectionError: no route to host)") == 1
    events = [json.loads(line) for line in (run / "events.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [event["text"] for event in events if event["event"] == "warning"]
    summaries = [json.loads((path / "summary.json").read_text(encoding="utf-8")) for path in (run, finished_run)]
    assert summaries[0]["params_sha256"] == summaries[1]["params_sha256"]  # watching changes nothing


def test_a_sink_that_is_not_installed_is_refused_before_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sinks, "find_spec", lambda _name: None)
    with pytest.raises(ConfigError, match=r"observe\.sinks names wandb, .* pip install 'draftsmith\[wandb\]'"):
        check_sinks(["wandb"])
    done = draftsmith("train", CONFIGS / "tiny-cpu.toml", 'observe.sinks=["trackio"]', "run.dir=/nowhere/run")
    assert done.code == 2
    assert "draftsmith[trackio]" in done.err


def test_an_unknown_sink_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"observe\.sinks"):
        tiny_config('observe.sinks=["tensorbored"]')


def test_numbers_are_drawn_and_nothing_else_is() -> None:
    row = metrics_row(3, loss="nan", flow={"verdict": "x", "stages": {"target": {"busy": 0.5}}}, skipped=True)
    found = scalars(row)
    assert found["accuracy_by_slot/2"] == 0.25
    assert found["flow/stages/target/busy"] == 0.5
    assert found["skipped"] == 1.0
    assert not {"loss", "time", "step", "seq", "flow/verdict"} & found.keys()
    assert scalars(event_row("evaluated", 1.0, step=3, acceptance=2.5, note="x")) == {"evaluated/acceptance": 2.5}


def fill(name: str, run: Path) -> list[str]:
    """Twenty rows and an event through a real sink; returns its warnings."""
    warnings: list[str] = []
    config = tiny_config().model_dump(mode="json", exclude_none=True)
    assert parse_config(config)
    with open_sinks([name], run, config, warn=warnings.append) as opened:
        for step in range(1, 21):
            opened.metrics(metrics_row(step))
        opened.event(event_row("evaluated", 1021.0, step=20, acceptance=2.5))
    return warnings


def test_tensorboard_reads_what_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    monkeypatch.setattr(sinks, "CLOSE_S", 60.0)
    assert fill("tensorboard", tmp_path) == []
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    losses = events.Scalars("loss")
    assert [point.step for point in losses] == list(range(1, 21))
    assert [point.value for point in losses] == pytest.approx([3.0 - 0.01 * step for step in range(1, 21)])
    assert losses[0].wall_time == 1001.0
    assert [point.value for point in events.Scalars("evaluated/acceptance")] == [2.5]


def test_wandb_keeps_an_offline_run_without_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sinks, "CLOSE_S", 60.0)
    monkeypatch.setenv("WANDB_API_KEY", "0123456789abcdef0123456789abcdef01234567")
    monkeypatch.setenv("HF_TOKEN", "hf_thisisnotarealtoken")
    assert fill("wandb", tmp_path) == []
    files = [path for path in (tmp_path / "wandb").rglob("*") if path.is_file()]
    (record,) = [path for path in files if path.suffix == ".wandb"]
    content = record.read_bytes()
    assert b"acceptance" in content
    for path in files:
        assert b"0123456789abcdef01234567" not in path.read_bytes(), path
        assert b"hf_thisisnotarealtoken" not in path.read_bytes(), path


def test_trackio_keeps_a_local_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import trackio
    from trackio import context_vars, sqlite_storage, utils

    assert trackio
    assert context_vars
    monkeypatch.setattr(sinks, "CLOSE_S", 60.0)
    for module in (sqlite_storage, utils):
        for name in ("TRACKIO_DIR", "MEDIA_DIR"):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, tmp_path / "trackio")
    assert fill("trackio", tmp_path / "run") == []
    (path,) = [path for path in (tmp_path / "trackio").rglob("*.db") if "draftsmith" in path.name]
    with sqlite3.connect(path) as database:
        (count,) = database.execute("select count(*) from metrics").fetchone()
    assert count == 21
    assert os.environ.get("TRACKIO_SPACE_ID") is None
