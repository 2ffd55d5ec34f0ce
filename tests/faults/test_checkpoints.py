"""Checkpoints come back bit by bit; a damaged one is passed over for the one before it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from draftsmith.drafter import Drafter
from draftsmith.errors import CheckpointError
from draftsmith.target import Target
from draftsmith.training import TrainState, load_checkpoint, params_sha256, take_snapshot, write_snapshot
from helpers import new_drafter, tiny_config


def save(run: Path, drafter: Drafter, step: int) -> Path:
    state = TrainState.create(drafter, tiny_config())
    state.step = step
    return write_snapshot(run, take_snapshot(state, {"seed": 3}))


DAMAGE: dict[str, Callable[[Path], object]] = {
    "a flipped byte": lambda d: (d / "drafter.safetensors").write_bytes(
        (d / "drafter.safetensors").read_bytes()[:-1] + b"\x77"
    ),
    "a short file": lambda d: (d / "drafter.safetensors").write_bytes((d / "drafter.safetensors").read_bytes()[:100]),
    "a missing file": lambda d: (d / "state.json").unlink(),
    "a missing manifest": lambda d: (d / "MANIFEST.json").unlink(),
    "an edited state": lambda d: (d / "state.json").write_text("{}"),
}


def test_a_round_trip_gives_the_same_bits_and_state(trained: Drafter, tmp_path: Path) -> None:
    directory = save(tmp_path, trained, 12)
    drafter, state, found = load_checkpoint(tmp_path)
    assert found == directory == tmp_path / "checkpoints" / "step-000012"
    assert (state["step"], state["seed"]) == (12, 3)
    assert drafter.shape == trained.shape
    assert params_sha256(drafter) == params_sha256(trained)


def test_the_newest_checkpoint_is_used_however_many_digits_its_step_has(target: Target, tmp_path: Path) -> None:
    for step in (5, 999_999, 1_000_000):
        save(tmp_path, new_drafter(target, seed=step), step)
    assert load_checkpoint(tmp_path)[1]["step"] == 1_000_000


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_checkpoint_is_passed_over_for_an_older_one(damage: str, target: Target, tmp_path: Path) -> None:
    save(tmp_path, new_drafter(target, seed=1), 1)
    DAMAGE[damage](save(tmp_path, new_drafter(target, seed=2), 2))
    drafter, state, _ = load_checkpoint(tmp_path)
    assert state["step"] == 1
    assert params_sha256(drafter) == params_sha256(new_drafter(target, seed=1))


@pytest.mark.parametrize("damage", DAMAGE)
def test_without_a_whole_checkpoint_the_error_names_what_is_wrong_with_each(
    damage: str, trained: Drafter, tmp_path: Path
) -> None:
    for step in (1, 2):
        DAMAGE[damage](save(tmp_path, trained, step))
    with pytest.raises(CheckpointError, match=r"no checkpoint that can be used: .*step-000002.*; .*step-000001"):
        load_checkpoint(tmp_path)


def test_without_any_checkpoint_the_error_says_where_one_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"there is no .*checkpoints/step-\*"):
        load_checkpoint(tmp_path)


def test_a_failed_save_leaves_the_older_checkpoint_and_nothing_else(
    trained: Drafter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, trained, 1)

    def full(*_arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("draftsmith.training.checkpoint.save_file", full)
    with pytest.raises(CheckpointError, match=r"step-000002 cannot be written: .*No space left"):
        save(tmp_path, trained, 2)
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["LATEST", "step-000001"]


def test_the_hash_of_parameters_sees_values_names_and_types(trained: Drafter, target: Target) -> None:
    known = params_sha256(trained)
    assert params_sha256(new_drafter(target, seed=1)) != known
    copy = Drafter(trained.shape)
    copy.load_state_dict(trained.state_dict())
    assert params_sha256(copy) == known
    with torch.no_grad():
        copy.norm.weight[0] += 1e-6
    assert params_sha256(copy) != known
    assert params_sha256(copy.to(torch.bfloat16)) != known
