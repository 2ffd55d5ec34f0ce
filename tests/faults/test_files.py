"""Directories and files appear whole or not at all, whatever goes wrong on the way."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

import draftsmith.files as files
from draftsmith.files import atomic_directory, atomic_write, manifest_problem, short_hash, write_manifest


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def write_then_fail(destination: Path, error: type[BaseException]) -> None:
    with atomic_directory(destination, replace=True) as aside:
        (aside / "file").write_text("half")
        raise error


def test_a_directory_appears_with_everything_in_it(tmp_path: Path) -> None:
    with atomic_directory(tmp_path / "deep" / "made") as aside:
        (aside / "sub").mkdir()
        (aside / "sub" / "file").write_text("text")
        assert not (tmp_path / "deep" / "made").exists()
    assert (tmp_path / "deep" / "made" / "sub" / "file").read_text() == "text"
    assert names(tmp_path / "deep") == ["made"]


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, OSError])
def test_a_failure_leaves_nothing_behind(error: type[BaseException], tmp_path: Path) -> None:
    with pytest.raises(error):
        write_then_fail(tmp_path / "made", error)
    assert names(tmp_path) == []


def test_an_existing_directory_is_refused_unless_it_is_to_be_replaced(tmp_path: Path) -> None:
    (tmp_path / "made").mkdir()
    with pytest.raises(FileExistsError, match="made already exists"), atomic_directory(tmp_path / "made"):
        pass
    assert names(tmp_path) == ["made"]


def test_the_old_directory_is_readable_until_the_new_one_is_complete(tmp_path: Path) -> None:
    made = tmp_path / "made"
    with atomic_directory(made) as aside:
        (aside / "file").write_text("old")
    with atomic_directory(made, replace=True) as aside:
        (aside / "file").write_text("new")
        assert (made / "file").read_text() == "old"
    assert (made / "file").read_text() == "new"
    assert names(tmp_path) == ["made"]


def test_a_failed_replacement_keeps_the_old_directory(tmp_path: Path) -> None:
    made = tmp_path / "made"
    with atomic_directory(made) as aside:
        (aside / "file").write_text("old")
    with pytest.raises(RuntimeError):
        write_then_fail(made, RuntimeError)
    assert (made / "file").read_text() == "old"
    assert names(tmp_path) == ["made"]


def test_a_rename_that_fails_brings_the_old_directory_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = tmp_path / "made"
    with atomic_directory(made) as aside:
        (aside / "file").write_text("old")
    rename = os.rename

    def failing(source: Path, destination: Path) -> None:
        if Path(destination) == made and ".tmp-" in str(source):
            raise OSError(errno.EIO, "broken disk")
        rename(source, destination)

    monkeypatch.setattr(files.os, "rename", failing)
    with pytest.raises(OSError, match="broken disk"), atomic_directory(made, replace=True) as aside:
        (aside / "file").write_text("new")
    assert (made / "file").read_text() == "old"
    assert names(tmp_path) == ["made"]


def test_a_kill_between_two_renames_loses_neither_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Killed(BaseException):
        pass

    def killed_after_the_first(source: Path, target: Path) -> None:
        rename(source, target)
        monkeypatch.setattr(os, "rename", dies)

    def dies(_source: Path, _target: Path) -> None:
        raise Killed

    destination, rename = tmp_path / "made", os.rename
    with atomic_directory(destination) as aside:
        (aside / "file").write_text("old")
    monkeypatch.setattr(os, "rename", killed_after_the_first)
    monkeypatch.setattr(files.shutil, "rmtree", lambda *_arguments, **_settings: None)  # nor does it clean up
    with pytest.raises(Killed), atomic_directory(destination, replace=True) as aside:
        (aside / "file").write_text("new")
    monkeypatch.undo()
    assert not destination.exists()
    assert len(files.sweep(tmp_path)) == 2
    assert names(tmp_path) == ["made"]
    assert (destination / "file").read_text() == "old"


def test_a_file_is_replaced_as_a_whole_or_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    atomic_write(path, "old")
    atomic_write(path, "new")
    assert path.read_text() == "new"

    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        atomic_write(path, "newer")
    assert path.read_text() == "new"
    assert names(tmp_path) == ["file"]


def test_a_manifest_notices_every_kind_of_damage(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "a").write_text("content of a")
    (tmp_path / "sub" / "b").write_text("content of b")
    write_manifest(tmp_path, version=3)
    assert json.loads((tmp_path / "MANIFEST.json").read_text())["version"] == 3
    assert manifest_problem(tmp_path) is None
    (tmp_path / "a").write_text("content of A")
    assert str(manifest_problem(tmp_path)).endswith("a has other content than was written")
    (tmp_path / "a").write_text("short")
    assert str(manifest_problem(tmp_path)).endswith("a has 5 bytes, not 12")
    (tmp_path / "a").unlink()
    assert str(manifest_problem(tmp_path)).endswith("a is missing")
    for text in ("", "{", "[]", '{"files": 3}', '{"files": {"a": 1}}'):
        (tmp_path / "a").write_text("content of a")
        (tmp_path / "MANIFEST.json").write_text(text)
        assert "cannot be read" in str(manifest_problem(tmp_path)), text
    (tmp_path / "MANIFEST.json").unlink()
    assert "cannot be read" in str(manifest_problem(tmp_path))


def test_a_short_hash_depends_on_the_value_and_not_on_the_order_of_keys() -> None:
    assert short_hash({"a": 1, "b": [2]}) == short_hash({"b": [2], "a": 1})
    assert short_hash({"a": 1}) != short_hash({"a": 2})
    assert len(short_hash("x")) == 16


def test_a_file_that_cannot_be_written_is_named_as_people_know_it(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        atomic_write(tmp_path / "nowhere" / "page.html", "text")
    assert caught.value.filename == str(tmp_path / "nowhere" / "page.html")
