"""A directory that a run cannot have is refused by whoever starts its processes, before any of them is."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from ranks import TWO

import draftsmith.run.launching as launching
import draftsmith.run.on_ray as on_ray
from draftsmith import errors
from draftsmith.distributed.ranks import Ended, RankEnd
from draftsmith.errors import DraftsmithError
from draftsmith.run.lock import locked
from helpers import CONFIGS, draftsmith

BOTH = pytest.mark.parametrize("where", [TWO, "runtime=ray"])


@pytest.fixture(autouse=True)
def nothing_is_started(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    started = []
    monkeypatch.setattr(launching, "run_ranks", lambda *_: started.append("ranks"))
    monkeypatch.setattr(on_ray, "_machines", lambda *_: started.append("Ray"))
    yield
    assert not started


def contents(run: Path) -> dict[Path, bytes]:
    """Directories, too."""
    return {path: path.read_bytes() if path.is_file() else b"" for path in run.parent.rglob("*")}


def error_of(run: Path, *arguments: str) -> str:
    """Also that it changes nothing."""
    before = contents(run)
    done = draftsmith("train", CONFIGS / "tiny-cpu.toml", "train.grad_accum=2", f"run.dir={run}", *arguments)
    assert done.code == 2
    assert "Traceback" not in done.err
    assert before == contents(run)
    return done.err


@BOTH
def test_one_that_another_process_holds(where: str, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    with locked(tmp_path / "run"):
        holder = json.loads((tmp_path / "run" / "LOCK").read_text(encoding="utf-8"))
        assert f'is in use by another process, {{"pid": {holder["pid"]}' in error_of(tmp_path / "run", where)


@BOTH
def test_one_with_a_finished_run(where: str, finished_run: Path, tmp_path: Path) -> None:
    shutil.copytree(finished_run, tmp_path / "run")
    assert "already holds a run, which is finished" in error_of(tmp_path / "run", where)


@BOTH
def test_one_with_somebody_elses_files(where: str, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.txt").write_text("years of work", encoding="utf-8")
    assert "there is thesis.txt" in error_of(tmp_path / "run", where)


@BOTH
def test_one_without_a_run_that_could_be_resumed(where: str, tmp_path: Path) -> None:
    assert "holds no run that could be resumed" in error_of(tmp_path / "run", where, "--resume")


def errors_of_people() -> list[type[DraftsmithError]]:
    return [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, DraftsmithError)]


@pytest.mark.parametrize("kind", errors_of_people())
def test_what_a_rank_raises_whoever_started_it_raises_again(kind: type[DraftsmithError]) -> None:
    end = RankEnd(0, launching.CAN_BE_MENDED, {"error": kind.__name__, "text": "sample 7 is unreadable"})
    with pytest.raises(kind, match="sample 7 is unreadable"):
        launching.raise_what_a_rank_raised(Ended([end], None))
