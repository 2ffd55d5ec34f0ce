"""Hidden states on disk change nothing: not a bit of training, whatever is there, missing, torn or damaged."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from draftsmith.config import TargetConfig
from draftsmith.errors import DataError, ModelError
from draftsmith.records import Batch, BatchSpec
from draftsmith.target import (
    CacheReader,
    FeatureCache,
    FeatureWorker,
    RecordingWorker,
    Target,
    capture,
    load_target,
)
from draftsmith.target.invariant import causal_attention
from helpers import CONFIGS, draftsmith, random_text
from tolerances import SAME_NETWORK

LENGTHS = (9, 14, 5, 30, 21)
OFFSETS = np.concatenate([[0], np.cumsum(LENGTHS)])
SPECS = (BatchSpec(0, 0, 0, (1, 0), 14), BatchSpec(1, 0, 0, (2,), 5), BatchSpec(2, 0, 1, (4, 3), 30))
TEXTS = [random_text(seed, length) for seed, length in enumerate(LENGTHS)]


def collated(spec: BatchSpec) -> Batch:
    input_ids = torch.zeros(len(spec.samples), spec.padded_length, dtype=torch.long)
    for row, sample in enumerate(spec.samples):
        text = TEXTS[sample][: spec.padded_length]
        input_ids[row, : len(text)] = text
    return Batch(spec, input_ids, input_ids > 0, input_ids > 0)


def opened(directory: Path, target: Target) -> FeatureCache:
    return FeatureCache(directory / "features", target, OFFSETS, SPECS)


def captured(directory: Path, target: Target) -> FeatureCache:
    cache = opened(directory, target)
    capture(cache, target, collated)
    return cache


def recorder(cache: FeatureCache, target: Target) -> RecordingWorker:
    return RecordingWorker(FeatureWorker(target, target.device), cache, target, collated)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_on_a_processor_hidden_states_of_a_sample_do_not_depend_on_its_batch(dtype: str) -> None:
    """From 16 tokens on. Some processors have other kernels for products of few rows, which round otherwise."""
    target = load_target(TargetConfig(model="tiny-random", dtype=dtype))  # type: ignore[arg-type]
    for seed, length in enumerate((5, 16, 64, 100, 130, 200)):
        text = random_text(seed, length)
        alone = target.features(text[None])[0]
        for num_rows, padded_length in ((1, length + 3), (3, length + 11), (8, length + 1), (2, 256)):
            rows = random_text(99, num_rows, padded_length)
            rows[-1] = 0
            rows[-1, :length] = text
            found = target.features(rows)[-1, :length]
            if length < 16:
                torch.testing.assert_close(found, alone, **SAME_NETWORK)
            else:
                assert torch.equal(found, alone)


def test_attention_in_blocks_is_attention() -> None:
    generator = torch.Generator().manual_seed(0)
    for length in (1, 7, 64, 65, 200):
        query, key, value = torch.randn(3, 2, 4, length, 16, generator=generator)
        plain = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        torch.testing.assert_close(causal_attention(query, key, value, is_causal=True), plain, **SAME_NETWORK)
        window = torch.ones(length, length, dtype=torch.bool).tril() & torch.ones(length, length).triu(-5).bool()
        plain = nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=window)
        torch.testing.assert_close(causal_attention(query, key, value, attn_mask=window), plain, **SAME_NETWORK)
        both_ways = torch.ones(length, length, dtype=torch.bool)
        plain = nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=both_ways)
        assert torch.equal(causal_attention(query, key, value, attn_mask=both_ways), plain)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_hidden_states_from_disk_are_those_of_the_target_bit_by_bit(dtype: str, tmp_path: Path) -> None:
    target = load_target(TargetConfig(model="tiny-random", dtype=dtype))  # type: ignore[arg-type]
    made = captured(tmp_path, target)
    assert made.is_complete
    del made
    cache = opened(tmp_path, target)
    assert cache.is_complete
    got = cache.batch((2, 0), 12)
    assert got.dtype == target.dtype
    assert torch.equal(got[0, :5], target.features(TEXTS[2][None])[0])
    assert torch.equal(got[1, :9], target.features(TEXTS[0][None])[0])
    assert not got[0, 5:].any()
    assert not got[1, 9:].any()


def test_what_a_worker_records_is_what_it_gives_and_is_computed_once(
    target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = opened(tmp_path, target)
    work, num_computed = recorder(cache, target), 0
    features = target.features

    def counted(input_ids: torch.Tensor) -> torch.Tensor:
        nonlocal num_computed
        num_computed += 1
        return features(input_ids)

    monkeypatch.setattr(target, "features", counted)
    later = BatchSpec(0, 1, 0, (3, 2, 0), 30)
    first = work(collated(later))  # asked for out of turn: all three batches are computed
    assert num_computed == 3
    assert cache.is_complete
    assert torch.equal(first.target_hidden, CacheReader(cache, target)(collated(later)).target_hidden)
    for spec in (*SPECS, later):
        work(collated(spec))
    assert num_computed == 3
    assert torch.equal(first.target_hidden[0], features(TEXTS[3][None])[0])


def damage_features(path: Path) -> None:
    size = (path / "features.bin").stat().st_size
    with (path / "features.bin").open("r+b") as file:
        file.seek(size - 1)
        last = file.read(1)
        file.seek(size - 1)
        file.write(bytes([last[0] ^ 0x55]))


def tear_done(path: Path) -> None:
    text = (path / "done.txt").read_bytes()
    (path / "done.txt").write_bytes(text[:-7])


def lose_lines(path: Path) -> None:
    lines = (path / "done.txt").read_bytes().splitlines(keepends=True)
    (path / "done.txt").write_bytes(b"".join(lines[1:]))


def add_nonsense(path: Path) -> None:
    with (path / "done.txt").open("ab") as file:
        file.write(b"99 abc\nxyz\n-1 00\n\n3 \xff\n")


def shorten(path: Path) -> None:
    os.truncate(path / "features.bin", 10)


def forget(path: Path) -> None:
    (path / "about.json").unlink()


@pytest.mark.parametrize("harm", [damage_features, tear_done, lose_lines, add_nonsense, shorten, forget])
def test_what_is_damaged_is_computed_again_and_the_rest_is_kept(harm: Any, target: Target, tmp_path: Path) -> None:
    whole = captured(tmp_path, target).batch((0, 1, 2, 3, 4), 30)
    harm(tmp_path / "features")
    cache = opened(tmp_path, target)
    missing = cache.missing(range(len(LENGTHS)))
    assert missing
    if harm in (damage_features, tear_done, lose_lines, add_nonsense):
        assert len(missing) == 1
    capture(cache, target, collated)
    assert torch.equal(cache.batch((0, 1, 2, 3, 4), 30), whole)
    del cache
    assert opened(tmp_path, target).is_complete


def test_a_cache_of_another_precision_or_of_other_taps_is_begun_anew(target: Target, tmp_path: Path) -> None:
    captured(tmp_path, target)
    other = load_target(TargetConfig(model="tiny-random", dtype="bfloat16"))
    cache = opened(tmp_path, other)
    assert len(cache.missing(range(5))) == 5
    capture(cache, other, collated)
    assert cache.batch((0,), 9).dtype == torch.bfloat16


def test_too_little_room_is_told_with_both_sizes_before_anything_is_computed(
    target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stored states are far larger than the disk: https://github.com/deepseek-ai/DeepSpec/issues/21"""
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: usage._replace(free=1000))
    with pytest.raises(DataError, match=r"need 0\.0 GB at .*, where 0\.0 GB are free; set target.cache=none"):
        opened(tmp_path, target)
    assert not (tmp_path / "features").exists()


def test_a_second_run_may_read_a_whole_cache_and_may_not_touch_one_that_is_written(
    target: Target, tmp_path: Path
) -> None:
    writing = opened(tmp_path, target)
    with pytest.raises(DataError, match="another run is writing the hidden states"):
        opened(tmp_path, target)
    capture(writing, target, collated)
    del writing
    one, two = opened(tmp_path, target), opened(tmp_path, target)
    assert torch.equal(one.batch((1,), 14), two.batch((1,), 14))


def test_hidden_states_that_are_not_finite_are_never_kept(target: Target, tmp_path: Path) -> None:
    cache = opened(tmp_path, target)
    broken = target.twin()
    broken.features = lambda ids: torch.full((*ids.shape, target.feature_size), torch.nan)  # type: ignore[method-assign]
    with pytest.raises(ModelError, match="not finite for sample 1"):
        recorder(cache, broken)(collated(SPECS[0]))
    assert cache.missing((0, 1)) == [0, 1]


SETTINGS = ("train.max_steps=40", "batching.max_tokens=600", "eval.num_prompts=0", "eval.num_timed=0")


def train(run: Path, conversations: Path, cache: str, *settings: str) -> str:
    own = [f"data.conversations={conversations}", f"target.cache={cache}", f"run.dir={run}"]
    done = draftsmith("train", CONFIGS / "tiny-cpu.toml", *SETTINGS, *own, *settings)
    assert done.code == 0, done.err
    return str(json.loads((run / "summary.json").read_text(encoding="utf-8"))["params_sha256"])


@pytest.mark.parametrize("workers", [(), ("flow.target_devices=['cpu', 'cpu', 'cpu']",)])
def test_training_is_the_same_bit_by_bit_with_and_without_hidden_states_on_disk(
    workers: Sequence[str], conversations: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashes = []
    for cache in ("none", "first-epoch", "disk"):
        monkeypatch.setattr("draftsmith.run.opening.cache_root", lambda cache=cache: tmp_path / "cache" / cache)
        hashes.append(train(tmp_path / cache, conversations, cache, *workers))
    monkeypatch.setattr("draftsmith.run.opening.cache_root", lambda: tmp_path / "cache" / "first-epoch")
    hashes.append(train(tmp_path / "again", conversations, "first-epoch", *workers))  # nothing is left to compute
    assert len(set(hashes)) == 1
    metrics = (tmp_path / "none" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    assert max(json.loads(line)["epoch"] for line in metrics) >= 2  # the cache was read, in other batches


def test_rows_cut_by_a_batch_are_kept_as_they_are_cut(
    conversations: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("draftsmith.run.opening.cache_root", lambda: tmp_path / "cache")
    small = ("batching.max_tokens=60", "train.max_steps=60")
    hashes = {train(tmp_path / cache, conversations, cache, *small) for cache in ("none", "first-epoch", "disk")}
    assert len(hashes) == 1


def test_a_first_epoch_that_was_killed_is_completed_and_training_is_the_same(
    conversations: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    own = [f"data.conversations={conversations}", "target.cache=first-epoch", f"run.dir={tmp_path / 'killed'}"]
    arguments = ["train", str(CONFIGS / "tiny-cpu.toml"), *SETTINGS, "batching.max_tokens=100", *own]
    code = "from draftsmith.cli import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", code, *arguments], env=environment, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    )
    features = tmp_path / "cache" / "draftsmith" / "features"
    while not any(path.stat().st_size for path in features.glob("*/done.txt")):
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    monkeypatch.setattr("draftsmith.run.opening.cache_root", lambda: tmp_path / "cache" / "draftsmith")
    small = ("batching.max_tokens=100",)
    went_on = train(tmp_path / "again", conversations, "first-epoch", *small)
    assert went_on == train(tmp_path / "plain", conversations, "none", *small)


def test_capture_makes_what_training_then_only_reads(
    conversations: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("draftsmith.run.opening.cache_root", lambda: tmp_path / "cache")
    own = f"data.conversations={conversations}"
    shown = draftsmith("capture", CONFIGS / "tiny-cpu.toml", *SETTINGS, own, "target.cache=first-epoch")
    assert shown.code == 0, shown.err
    assert "tokens" in shown.out
    (directory,) = (path for path in (tmp_path / "cache" / "features").iterdir() if path.is_dir())
    assert str(directory) in shown.out
    before = (directory / "done.txt").read_bytes()
    again = draftsmith("capture", CONFIGS / "tiny-cpu.toml", *SETTINGS, own, "target.cache=first-epoch")
    assert "0 of them computed now" in again.out
    hashes = {train(tmp_path / cache, conversations, cache) for cache in ("first-epoch", "disk", "none")}
    assert len(hashes) == 1
    assert (directory / "done.txt").read_bytes() == before
    assert len(list((tmp_path / "cache" / "features").glob("*/about.json"))) == 1


def test_a_run_killed_in_its_first_epoch_and_resumed_ends_as_one_without_hidden_states_on_disk(
    conversations: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    small = ("batching.max_tokens=100", "checkpoint.every_steps=2")
    own = [f"data.conversations={conversations}", "target.cache=first-epoch", f"run.dir={tmp_path / 'killed'}"]
    arguments = ["train", str(CONFIGS / "tiny-cpu.toml"), *SETTINGS, *small, *own]
    code = "from draftsmith.cli import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", code, *arguments], env=environment, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    )
    while not list((tmp_path / "killed" / "checkpoints").glob("step-*")):
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    cache = tmp_path / "cache" / "draftsmith"
    (done,) = (cache / "features").glob("*/done.txt")
    done.write_bytes(done.read_bytes()[: done.stat().st_size // 2])  # and the disk lost a part
    monkeypatch.setattr("draftsmith.run.opening.cache_root", lambda: cache)
    resumed = train(tmp_path / "killed", conversations, "first-epoch", *small)
    assert resumed == train(tmp_path / "plain", conversations, "none", *small)
