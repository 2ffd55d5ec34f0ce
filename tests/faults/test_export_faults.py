"""An export that fails leaves nothing, or what stood there before."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from draftsmith.drafter import Drafter
from draftsmith.errors import ExportError
from draftsmith.export import export_drafter, read_drafter


def disk_full(*_arguments: object, **_settings: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_leaves_nothing_behind(trained: Drafter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("draftsmith.export.directory.save_file", disk_full)
    with pytest.raises(ExportError, match=r"cannot be written to .*drafter: .*No space left on device"):
        export_drafter(trained, tmp_path / "drafter", card="")
    assert not list(tmp_path.iterdir())


def test_a_full_disk_while_replacing_keeps_the_drafter_that_stood_there(
    trained: Drafter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    export_drafter(trained, tmp_path / "drafter", card="first")
    monkeypatch.setattr("draftsmith.export.directory.save_file", disk_full)
    with pytest.raises(ExportError, match="No space left"):
        export_drafter(trained, tmp_path / "drafter", card="second", replace=True)
    monkeypatch.undo()
    assert [path.name for path in tmp_path.iterdir()] == ["drafter"]
    assert (tmp_path / "drafter" / "README.md").read_text() == "first"
    read_drafter(tmp_path / "drafter")


def test_what_does_not_read_back_as_it_was_written_is_not_published(
    trained: Drafter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def careless(tensors: dict[str, torch.Tensor], path: Path, **settings: object) -> None:
        save_file({**tensors, "norm.weight": tensors["norm.weight"] * 2}, path)

    monkeypatch.setattr("draftsmith.export.directory.save_file", careless)
    with pytest.raises(ExportError, match=r"norm\.weight does not read back as it was written"):
        export_drafter(trained, tmp_path / "drafter", card="")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("broken", ["config.json", "model.safetensors"])
def test_a_missing_or_torn_file_is_one_clear_error(broken: str, trained: Drafter, tmp_path: Path) -> None:
    directory = export_drafter(trained, tmp_path / "drafter", card="")
    (directory / broken).write_bytes((directory / broken).read_bytes()[:20])
    with pytest.raises(ExportError, match="cannot be read as an exported drafter"):
        read_drafter(directory)
    (directory / broken).unlink()
    with pytest.raises(ExportError, match="cannot be read as an exported drafter"):
        read_drafter(directory)
