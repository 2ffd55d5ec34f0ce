"""Training through the pipeline: neither workers nor timing nor faults change what is trained."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import draftsmith.run.loop as loop_module
from draftsmith.data import collate
from draftsmith.errors import ConfigError, ModelError
from draftsmith.records import Batch, BatchSpec
from draftsmith.streams import EXIT_HUNG, default_budget_bytes, topology
from draftsmith.target import FeatureWorker, Handed, Target, feature_bytes, resolve_device
from draftsmith.target.worker import require_finite
from draftsmith.training import load_checkpoint, params_sha256
from helpers import CONFIGS, Finished, draftsmith, random_text, running, tiny_config

ONE, TWO, FOUR = (f"flow.target_devices={json.dumps(['cpu'] * count)}" for count in (1, 2, 4))
original_call = FeatureWorker.__call__


@pytest.fixture(autouse=True)
def P11_nothing_is_left_running() -> Iterator[None]:
    before = running()
    yield
    assert not running() - before


@pytest.fixture
def train(settings_of_run: list[str], tmp_path: Path) -> Callable[..., tuple[Finished, Path]]:
    """Train for eight steps with these overrides, without measuring anything."""

    def run(*overrides: str) -> tuple[Finished, Path]:
        directory = tmp_path / f"run-{len(list(tmp_path.iterdir()))}"
        settings = [*settings_of_run, "eval.num_prompts=0", "eval.num_timed=0", *overrides]
        return draftsmith("train", CONFIGS / "tiny-cpu.toml", *settings, f"run.dir={directory}"), directory

    return run


def summary_of(finished: tuple[Finished, Path]) -> dict[str, Any]:
    assert finished[0].code == 0, finished[0].err
    return dict(json.loads((finished[1] / "summary.json").read_text(encoding="utf-8")))


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def with_calls(monkeypatch: pytest.MonkeyPatch, call: Callable[[FeatureWorker, Batch], Handed]) -> None:
    monkeypatch.setattr(FeatureWorker, "__call__", call)


@pytest.mark.parametrize(
    "overrides",
    [
        (),
        (ONE,),
        (TWO,),
        (FOUR,),
        (FOUR, "flow.max_items=1"),
        (TWO, "flow.budget_bytes=1"),
        (FOUR, "flow.budget_bytes=3000000", "flow.max_items=16"),
    ],
    ids=lambda found: " ".join(found) or "default",
)
def test_P4_parameters_do_not_depend_on_workers_delays_or_capacities(
    overrides: tuple[str, ...],
    finished_run: Path,
    train: Callable[..., tuple[Finished, Path]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng, never = random.Random(str(overrides)), threading.Event()

    def delayed(self: FeatureWorker, batch: Batch) -> Handed:
        never.wait(rng.random() * 0.02)
        return original_call(self, batch)

    with_calls(monkeypatch, delayed)
    expected = json.loads((finished_run / "summary.json").read_text(encoding="utf-8"))["params_sha256"]
    assert summary_of(train(*overrides))["params_sha256"] == expected


@pytest.mark.parametrize("num_dying", [1, 2, 3])
def test_P3_a_target_worker_that_dies_changes_nothing(
    num_dying: int,
    finished_run: Path,
    train: Callable[..., tuple[Finished, Path]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lost: set[int] = set()  # batches; a batch that is lost three times would stop the run

    def dying(self: FeatureWorker, batch: Batch) -> Handed:
        if len(lost) < num_dying and batch.spec.seq not in lost:
            lost.add(batch.spec.seq)
            raise RuntimeError("device lost")
        return original_call(self, batch)

    with_calls(monkeypatch, dying)
    summary = summary_of(train(FOUR))
    expected = json.loads((finished_run / "summary.json").read_text(encoding="utf-8"))["params_sha256"]
    assert summary["params_sha256"] == expected
    assert summary["flow"]["stages"]["target"]["retries"] == num_dying


def spoiled(times: int) -> Callable[[FeatureWorker, Batch], Handed]:
    """Batch 2 gets a hidden state that is not finite, so many times."""
    left = [times]

    def call(self: FeatureWorker, batch: Batch) -> Handed:
        handed = original_call(self, batch)
        if batch.spec.seq == 2 and left[0]:
            left[0] -= 1
            handed.target_hidden[1, 2, 64 + 5] = torch.nan
        require_finite(handed.target_hidden, batch.spec, self._target)
        return handed

    return call


def test_P12_hidden_states_that_are_not_finite_once_are_made_again(
    finished_run: Path, train: Callable[..., tuple[Finished, Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    with_calls(monkeypatch, spoiled(1))
    expected = json.loads((finished_run / "summary.json").read_text(encoding="utf-8"))["params_sha256"]
    summary = summary_of(train(TWO))
    assert summary["params_sha256"] == expected
    assert summary["flow"]["stages"]["target"]["retries"] == 1


def test_P12_hidden_states_that_are_not_finite_twice_stop_the_run_with_sample_layer_and_checkpoint(
    train: Callable[..., tuple[Finished, Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    with_calls(monkeypatch, spoiled(99))
    done, run = train(TWO)
    assert done.code == 2
    assert "stage target, worker" in done.err
    assert "after 2 attempts: ModelError: hidden states of target tiny-random are not finite for sample" in done.err
    assert "at layer 2" in done.err, "the second of the taps 1, 2, 3, 4, 5"
    assert "samples" in done.err
    assert "Traceback" not in done.err
    assert load_checkpoint(run)[1]["step"] == 2, "what came before was trained and is kept"
    assert lines_of(run / "events.jsonl")[-1]["event"] == "failed"


def test_P10_a_target_that_hangs_is_named_and_its_stack_is_on_disk(
    train: Callable[..., tuple[Finished, Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    released, report = threading.Event(), loop_module._journal_stall

    def stuck_here(self: FeatureWorker, batch: Batch) -> Handed:
        if batch.spec.seq == 2:
            released.wait(30)
        return original_call(self, batch)

    def report_and_release(*arguments: Any) -> None:
        report(*arguments)
        released.set()

    with_calls(monkeypatch, stuck_here)
    monkeypatch.setattr(loop_module, "_journal_stall", report_and_release)
    done, run = train("flow.watchdog_s=1.5")
    assert done.code == 2
    assert "stage target, worker 0, item 2 (batch 2 of epoch 0, samples" in done.err
    stall = next(line for line in lines_of(run / "events.jsonl") if line["event"] == "stall")
    assert (stall["stage"], stall["item"]) == ("target", 2)
    assert "stuck_here" in stall["stacks"]
    assert load_checkpoint(run)[1]["step"] == 2


def test_P10_a_step_that_hangs_is_interrupted_and_half_of_it_is_not_saved(
    train: Callable[..., tuple[Finished, Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    original, steps = loop_module.add_batch, iter(range(100))

    def hangs(*arguments: Any, **settings: Any) -> Any:
        if next(steps) == 5:
            arguments[0].step += 100  # half a step
            while True:
                time.sleep(0.001)
        return original(*arguments, **settings)

    monkeypatch.setattr(loop_module, "add_batch", hangs)
    done, run = train("flow.watchdog_s=1.5", "checkpoint.every_steps=2")
    assert done.code == 2
    assert "stage training, item 5: has not returned for 1.5 s" in done.err
    assert load_checkpoint(run)[1]["step"] == 4, "the last whole one"
    assert [line["event"] for line in lines_of(run / "events.jsonl")][-2:] == ["stall", "failed"]


def test_a_batch_without_a_valid_anchor_keeps_its_slot_with_weight_zero(
    train: Callable[..., tuple[Finished, Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def collate_one_without_answers(store: Any, spec: BatchSpec) -> Batch:
        batch = collate(store, spec)
        return batch if spec.seq != 2 else Batch(spec, batch.input_ids, batch.attention_mask, batch.loss_mask & False)

    monkeypatch.setattr("draftsmith.data.collate", collate_one_without_answers)
    finished = train(TWO)
    assert summary_of(finished)["train_steps"] == 8
    steps = lines_of(finished[1] / "metrics.jsonl")
    assert [step["seq"] for step in steps][:3] == [0, 1, 2]
    assert steps[2]["num_blocks"] == 0
    assert steps[2]["loss"] == 0
    checkpoint, _, _ = load_checkpoint(finished[1])
    assert all(bool(parameter.isfinite().all()) for parameter in checkpoint.parameters())


def test_who_is_slow_is_in_summary_metrics_and_progress(
    train: Callable[..., tuple[Finished, Path]],
) -> None:
    finished = train(TWO, "train.max_steps=20")
    flow = summary_of(finished)["flow"]
    assert set(flow["stages"]) == {"plan", "collate", "target", "training"}
    for stage in flow["stages"].values():
        assert stage["busy"] + stage["starved"] + stage["blocked"] == pytest.approx(1, abs=0.02)
    assert flow["stages"]["target"]["workers"] == 2
    assert flow["stages"]["training"]["tokens_per_s"] > 0
    assert flow["bottleneck"] in {*flow["stages"], "budget_bytes", "max_items"}
    assert 0 < flow["peak_bytes"] <= flow["budget_bytes"]
    reported = [line["step"] for line in lines_of(finished[1] / "metrics.jsonl") if "flow" in line]
    assert reported == [10, 20]
    (line,) = [line for line in finished[0].err.splitlines() if "slowest: " in line]
    assert "% busy, " in line


def test_the_cache_on_disk_takes_the_place_of_the_target(
    finished_run: Path,
    train: Callable[..., tuple[Finished, Path]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("draftsmith.run.opening.cache_root", lambda: tmp_path / "cache")
    summary = summary_of(train("target.cache=disk"))
    assert set(summary["flow"]["stages"]) == {"plan", "collate", "cache", "training"}


def test_twins_share_weights_and_nothing_else(target: Target) -> None:
    texts = [random_text(seed, 2, 40) for seed in range(8)]
    expected = [target.features(text) for text in texts]
    twins = [target.twin() for _ in texts]
    assert {twin.embedding.weight.data_ptr() for twin in twins} == {target.embedding.weight.data_ptr()}
    got: list[torch.Tensor | None] = [None] * len(texts)

    def work(index: int) -> None:
        for _ in range(5):
            got[index] = twins[index].features(texts[index])

    threads = [threading.Thread(target=work, args=(index,)) for index in range(len(texts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for found, wanted in zip(got, expected, strict=True):
        assert found is not None
        assert torch.equal(found, wanted)
    assert torch.equal(target.features(texts[0]), expected[0])


def test_threads_are_fixed_by_the_configuration_and_not_by_the_number_of_workers(
    train: Callable[..., tuple[Finished, Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: set[tuple[str, int]] = set()

    def counting(self: FeatureWorker, batch: Batch) -> Handed:
        handed = original_call(self, batch)
        seen.add(("target", torch.get_num_threads()))
        return handed

    with_calls(monkeypatch, counting)
    summary_of(train(FOUR, "num_threads=1", "flow.target_threads=2", "train.max_steps=6"))
    assert seen == {("target", 2)}


@pytest.mark.parametrize("num_workers", [1, 2, 4])
def test_topology_gives_every_worker_its_own_threads(num_workers: int) -> None:
    config = tiny_config("num_threads=8", f"flow.target_devices={json.dumps(['cpu'] * num_workers)}")
    where = topology(config, device="cpu", num_cores=2)
    assert (where.target_threads, where.drafter_threads, where.name) == (1, 4, "colocated")


@pytest.mark.parametrize(("threads", "workers", "each", "drafter"), [(1, 1, 1, 1), (2, 2, 1, 1), (8, 4, 2, 4)])
def test_topology_by_default_shares_the_cores_out(threads: int, workers: int, each: int, drafter: int) -> None:
    where = topology(tiny_config(f"num_threads={threads}"), device="cpu", num_cores=2)
    assert (where.target_devices, where.drafter_device) == (("cpu",) * workers, "cpu")
    assert (where.target_threads, where.drafter_threads) == (each, drafter)
    assert topology(tiny_config(f"num_threads={threads}"), device="cuda", num_cores=2).target_devices == ("cuda:0",)


def test_topology_gives_the_drafter_all_threads_when_no_target_computes_beside_it() -> None:
    cached = topology(tiny_config("num_threads=8", "target.cache=disk"), device="cpu", num_cores=2)
    split = topology(tiny_config("num_threads=8", 'flow.target_devices=["cuda:0"]'), device="cpu", num_cores=2)
    assert cached.drafter_threads == split.drafter_threads == 8
    assert split.name == "split"


def test_a_device_that_is_not_here_is_named_with_its_setting() -> None:
    with pytest.raises(ConfigError, match=r"flow\.target_devices is 'cuda:9', which cannot be used here"):
        resolve_device("cuda:9", setting="flow.target_devices")


def test_the_default_budget_is_at_most_a_quarter_of_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("draftsmith.streams.memory_limit_bytes", lambda: 400)
    assert default_budget_bytes(topology(tiny_config(), device="cpu", num_cores=2)) == 100


def test_bytes_of_features_are_known_from_the_plan(target: Target) -> None:
    spec = BatchSpec(seq=0, epoch=0, bucket=0, samples=(0, 1), padded_length=40)
    hidden = target.features(random_text(0, 2, 40))
    assert feature_bytes(spec, target) == hidden.numel() * hidden.element_size() + 2 * 40 * 10


def test_what_is_not_finite_is_named_by_sample_and_layer(target: Target) -> None:
    spec = BatchSpec(seq=7, epoch=1, bucket=0, samples=(11, 12), padded_length=40)
    hidden = target.features(random_text(0, 2, 40))
    require_finite(hidden, spec, target)
    hidden[1, 39, -1] = torch.inf
    with pytest.raises(ModelError, match=rf"sample 12 at layer {target.layer_ids[-1]} \(batch 7 of epoch 1\)"):
        require_finite(hidden, spec, target)


def test_tune_predicts_every_placement_and_recommends_one(settings_of_run: list[str]) -> None:
    done = draftsmith("tune", CONFIGS / "tiny-cpu.toml", *settings_of_run, TWO, "--batches", 2)
    assert done.code == 0, done.err
    assert "us/token" in done.out
    assert "colocated: target on cpu; drafter on cpu" in done.out
    assert "recommended: flow.target_devices=" in done.out


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_features_handed_over_on_a_gpu_are_those_of_the_target_alone(target: Target) -> None:
    device = torch.device("cuda", 0)
    on_gpu = Target(
        __import__("copy").deepcopy(target.twin().model).to(device),
        layer_ids=target.layer_ids,
        num_taps=5,
        name=target.name,
    )
    worker = FeatureWorker(on_gpu.twin(), device)
    for seed in range(20):
        ids = random_text(seed, 4, 128)
        spec = BatchSpec(seq=seed, epoch=0, bucket=0, samples=(0, 1, 2, 3), padded_length=128)
        handed = worker(Batch(spec, ids, torch.ones_like(ids).bool(), torch.ones_like(ids).bool()).pinned())
        assert handed.ready is not None
        item = handed.receive()
        del handed
        assert torch.equal(item.target_hidden, on_gpu.features(ids.to(device)))
        assert item.batch.input_ids.is_cuda


def test_parameters_of_the_run_are_those_in_its_checkpoint(train: Callable[..., tuple[Finished, Path]]) -> None:
    finished = train(TWO, "train.max_steps=3")
    assert params_sha256(load_checkpoint(finished[1])[0]) == summary_of(finished)["params_sha256"]


def test_P10_training_that_hangs_in_a_call_ends_the_process_and_says_which_stage(tmp_path: Path) -> None:
    program = """
import time
import draftsmith.flow.pipeline, draftsmith.run.training
draftsmith.flow.pipeline.AFTER_STALL_S = 0.3
draftsmith.run.loop.add_batch = lambda *_arguments, **_settings: time.sleep(60)
from draftsmith.cli import main
main()
"""
    arguments = ["train", CONFIGS / "tiny-cpu.toml", "flow.watchdog_s=1", f"run.dir={tmp_path / 'run'}"]
    command = [sys.executable, "-c", program, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == EXIT_HUNG, done.stderr
    assert "stage training, item 0: has not returned for 1 s" in done.stderr
    stall = next(line for line in lines_of(tmp_path / "run" / "events.jsonl") if line["event"] == "stall")
    assert "thread MainThread" in stall["stacks"]
    assert "in <lambda>" in stall["stacks"]
