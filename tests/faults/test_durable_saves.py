"""Saving: a crash at any point of it, and damage of any kind afterwards, leave a checkpoint to go on from."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import draftsmith.files
import draftsmith.training.checkpoint as checkpoint_module
from draftsmith.errors import CheckpointError
from draftsmith.flow import Background
from draftsmith.observe import Journal
from draftsmith.records import FeatureBatch
from draftsmith.run.resuming import newest_of
from draftsmith.target import Target
from draftsmith.training import (
    Saver,
    Schedule,
    TrainState,
    moments_sha256,
    newest_checkpoint,
    open_checkpoint,
    params_sha256,
    take_snapshot,
    train_step,
    write_snapshot,
)
from helpers import feature_batch, new_drafter, random_text, tiny_config

SEED = int(os.environ.get("CHAOS_SEED", "8"))


@pytest.fixture(scope="module")
def item(target: Target) -> FeatureBatch:
    return feature_batch(target, random_text(0, 2, 30).tolist(), [10, 10])


def steps_of(target: Target, item: FeatureBatch, num_steps: int) -> TrainState:
    config = tiny_config("train.optimizer=muon")
    state = TrainState.create(new_drafter(target, num_layers=1), config)
    for _ in range(num_steps):
        train_step(state, item, target, config, progress=0.5)
    return state


@pytest.fixture
def two_saves(target: Target, item: FeatureBatch, tmp_path: Path) -> tuple[Path, TrainState, Any]:
    """A run with step 1 saved, the state of step 2, and its snapshot."""
    run = tmp_path / "run"
    state = steps_of(target, item, 1)
    write_snapshot(run, take_snapshot(state, {}))
    train_step(state, item, target, tiny_config("train.optimizer=muon"), progress=0.5)
    return run, state, take_snapshot(state, {})


def test_what_is_restored_goes_on_as_what_was_saved(target: Target, item: FeatureBatch, tmp_path: Path) -> None:
    config = tiny_config("train.optimizer=muon")
    saved = steps_of(target, item, 3)
    saved.seconds, saved.acceptance = 1.25, {2: 1.5}
    directory = write_snapshot(tmp_path, take_snapshot(saved, {"contract": {}}))
    restored = TrainState.create(new_drafter(target, num_layers=1, seed=9), config)
    open_checkpoint(directory).restore(restored)
    for state in (saved, restored):
        train_step(state, item, target, config, progress=0.7)
    assert params_sha256(restored.drafter) == params_sha256(saved.drafter)
    assert moments_sha256(restored) == moments_sha256(saved)
    assert (restored.step, restored.seconds, restored.acceptance) == (4, 1.25, {2: 1.5})
    assert restored.guards == saved.guards
    assert (restored.num_anchors, restored.num_context_tokens) == (saved.num_anchors, saved.num_context_tokens)


class Crashes:
    """Copies a directory around every operation of a save: what a crash there would leave. Names what is not synced."""

    def __init__(self, run: Path, into: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._run, self._into = run, into
        self._synced: set[Path] = set()
        self.left: list[tuple[Path, list[Path]]] = []
        for module, name in (
            (os, "rename"),
            (os, "replace"),
            (draftsmith.files, "fsync"),
            (checkpoint_module, "save_file"),
            (checkpoint_module, "write_manifest"),
            (Path, "write_text"),
        ):
            monkeypatch.setattr(module, name, self._around(getattr(module, name), is_sync=name == "fsync"))

    def _around(self, original: Callable[..., Any], *, is_sync: bool) -> Callable[..., Any]:
        def call(*arguments: Any, **settings: Any) -> Any:
            self._keep()
            result = original(*arguments, **settings)
            if is_sync:
                self._synced.add(Path(arguments[0]).absolute())
            self._keep()
            return result

        return call

    def _keep(self) -> None:
        copy = self._into / str(len(self.left))
        shutil.copytree(self._run, copy)
        unsynced = [
            copy / path.relative_to(self._run)
            for path in self._run.rglob("*")
            if path.is_file() and ".tmp-" in str(path) and path.absolute() not in self._synced
        ]
        self.left.append((copy, unsynced))


def test_P7_a_crash_at_any_point_of_a_save_leaves_the_old_state_or_the_new_one(
    two_saves: tuple[Path, TrainState, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, state, snapshot = two_saves
    rng = random.Random(SEED)
    with monkeypatch.context() as patched:
        crashes = Crashes(run, tmp_path / "crashes", patched)
        write_snapshot(run, snapshot)
    steps = []
    for copy, unsynced in crashes.left:
        steps.append(check_state(copy, state))
        for path in unsynced:  # what was written and not synced may be there in part, or not at all
            if path.exists():
                os.truncate(path, rng.randrange(path.stat().st_size + 1))
        steps.append(check_state(copy, state))
    assert set(steps) == {1, 2}
    assert steps == sorted(steps), "once the new one is there, it stays"
    assert len(crashes.left) > 20


def check_state(run: Path, newest: TrainState) -> int:
    checkpoint, problems = newest_checkpoint(run)
    assert checkpoint is not None
    assert not problems, "nothing half-written bears the name of a checkpoint"
    if checkpoint.step == newest.step:
        assert params_sha256(checkpoint.drafter()) == params_sha256(newest.drafter)
    return checkpoint.step


def damage(path: Path, rng: random.Random) -> str:
    whole = path.read_bytes()
    if rng.random() < 0.4:
        path.write_bytes(whole[: rng.randrange(len(whole))])
        return f"{path.name} truncated"
    place, bit = rng.randrange(len(whole)), rng.randrange(8)
    path.write_bytes(whole[:place] + bytes([whole[place] ^ (1 << bit)]) + whole[place + 1 :])
    return f"bit {bit} of byte {place} of {path.name} flipped"


def check_damage(run: Path, num_cases: int) -> None:
    rng = random.Random(SEED)
    newest = run / "checkpoints" / "step-000002"
    for case in range(num_cases):
        path = rng.choice(sorted(newest.iterdir()))
        whole = path.read_bytes()
        what = f"case {case}, seed {SEED}: {damage(path, rng)}"
        checkpoint, problems = newest_checkpoint(run)
        assert checkpoint is not None, what
        assert checkpoint.step == 1, what
        named = str(newest) if path.name == "MANIFEST.json" else str(path)
        assert named in problems[newest], what
        path.write_bytes(whole)
    assert newest_checkpoint(run)[0].step == 2  # type: ignore[union-attr]


def test_P8_a_flipped_bit_or_a_truncated_file_is_named_and_the_older_checkpoint_is_used(
    two_saves: tuple[Path, TrainState, Any],
) -> None:
    run, _, snapshot = two_saves
    write_snapshot(run, snapshot)
    check_damage(run, 40)


@pytest.mark.long
def test_P8_two_hundred_corruptions(two_saves: tuple[Path, TrainState, Any]) -> None:
    run, _, snapshot = two_saves
    write_snapshot(run, snapshot)
    check_damage(run, 200)


def test_P8_a_damaged_checkpoint_is_set_aside_and_its_step_can_be_saved_again(
    two_saves: tuple[Path, TrainState, Any],
) -> None:
    run, _, snapshot = two_saves
    for _ in range(2):
        damage(write_snapshot(run, snapshot) / "optimizer.safetensors", random.Random(1))
        checkpoint, problems = newest_of(run)
        assert checkpoint is not None
        assert (checkpoint.step, len(problems)) == (1, 1)
    names = sorted(path.name for path in (run / "checkpoints").iterdir() if path.is_dir())
    assert names == ["step-000001", "step-000002.corrupt", "step-000002.corrupt2"]


def test_P8_where_no_checkpoint_is_whole_nothing_starts_over_silently(
    two_saves: tuple[Path, TrainState, Any],
) -> None:
    run, _, _ = two_saves
    damage(run / "checkpoints" / "step-000001" / "drafter.safetensors", random.Random(1))
    with pytest.raises(CheckpointError, match=r"no checkpoint that is whole: .*drafter\.safetensors.*to start over"):
        newest_of(run)
    assert (run / "checkpoints" / "step-000001").exists()


def test_a_state_whose_update_was_interrupted_is_never_saved(target: Target, item: FeatureBatch) -> None:
    config = tiny_config()
    state = steps_of(target, item, 1)

    def interrupted() -> None:
        raise KeyboardInterrupt

    state.optimizers[-1].step = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        train_step(state, item, target, config, progress=0.5)
    with pytest.raises(CheckpointError, match="update after step 1 was interrupted"):
        take_snapshot(state, {})


def test_a_state_that_is_not_finite_is_never_saved(target: Target, item: FeatureBatch) -> None:
    state = steps_of(target, item, 1)
    state.drafter.norm.weight.data[0] = float("nan")
    with pytest.raises(CheckpointError, match=r"not finite \(norm\.weight\)"):
        take_snapshot(state, {})


def test_a_checkpoint_is_due_by_steps_or_by_minutes_and_after_a_failure_sooner() -> None:
    by_steps = Schedule(8, 0.0, (0, 0.0))
    assert [by_steps.due(step, 1e9) for step in (7, 8)] == [False, True]
    by_minutes = Schedule(0, 60.0, (0, 0.0))
    assert [by_minutes.due(10**6, seconds) for seconds in (59, 60)] == [False, True]
    by_steps.tried = (8, 0.0)
    assert [by_steps.due(step, 0) for step in (9, 10)] == [False, True]
    assert [by_steps.overdue(step, 0) for step in (15, 16)] == [False, True]
    never = Schedule(0, 0.0, (0, 0.0))
    assert not never.due(10**9, 1e9)


@pytest.fixture
def saver(tmp_path: Path) -> Iterator[Saver]:
    config = tiny_config("checkpoint.every_steps=2", "checkpoint.every_minutes=0", "checkpoint.keep_best=1")
    with Background("checkpoint") as background, Journal(tmp_path) as journal:
        yield Saver(tmp_path, config.checkpoint, background, journal, facts=lambda _state: {}, alarm=lambda _text: None)


def test_the_newest_two_and_the_best_are_kept(saver: Saver, target: Target, item: FeatureBatch, tmp_path: Path) -> None:
    state = steps_of(target, item, 0)
    for step, acceptance in ((2, 1.0), (4, 3.0), (6, 2.0), (8, 3.0), (10, 1.0)):
        state.step = step
        saver.save_now(state)
        state.acceptance[step] = acceptance
    names = sorted(path.name for path in (tmp_path / "checkpoints").glob("step-*"))
    assert names == ["step-000004", "step-000008", "step-000010"]
    assert (tmp_path / "checkpoints" / "LATEST").read_text() == "step-000010\n"


def test_older_checkpoints_stay_until_a_newer_one_has_been_read_back(
    saver: Saver, target: Target, item: FeatureBatch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = steps_of(target, item, 0)
    for step in (2, 4):
        state.step = step
        saver.save_now(state)
    monkeypatch.setattr(checkpoint_module, "manifest_problem", lambda _directory: "a sector is gone")
    state.step = 6
    with pytest.raises(CheckpointError, match="does not read back as it was written: a sector is gone"):
        saver.save_now(state)
    assert {path.name for path in (tmp_path / "checkpoints").glob("step-*")} >= {"step-000002", "step-000004"}
