"""Every command from end to end on the tiny target."""

from __future__ import annotations

import importlib
import json
import shutil
import signal
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch

from draftsmith.data import TokenStore
from draftsmith.export import read_drafter
from draftsmith.target import Target, generate
from draftsmith.training import load_checkpoint, params_sha256
from helpers import CONFIGS, chat_row, draftsmith, write_jsonl

COMMANDS = ("demo", "prepare", "regenerate", "train", "eval", "export")
PROMISED = {
    "acceptance_length": float,
    "acceptance_by_slot": list,
    "baseline_tokens_per_s": float,
    "speculative_tokens_per_s": float,
    "speedup": float,
    "lossless": bool,
    "num_lossless": int,
    "num_lossless_checked": int,
    "train_seconds": float,
    "train_steps": int,
    "train_context_tokens": int,
    "num_anchors_trained": int,
    "target": str,
    "seed": int,
    "params_sha256": str,
    "peak_memory_bytes": int,
}


def read_json(path: Path) -> dict[str, object]:
    return dict(json.loads(path.read_text(encoding="utf-8")))


def test_help_names_every_command_and_every_command_explains_itself() -> None:
    shown = draftsmith("--help")
    assert shown.code == 0
    for command in COMMANDS:
        assert command in shown.out
        own = draftsmith(command, "--help")
        assert own.code == 0
        assert "Usage" in own.out


def test_a_run_leaves_what_was_promised(finished_run: Path) -> None:
    assert {path.name for path in finished_run.iterdir()} >= {
        "config.toml",
        "environment.json",
        "events.jsonl",
        "metrics.jsonl",
        "summary.json",
        "checkpoints",
        "drafter",
        "store",
    }
    summary = read_json(finished_run / "summary.json")
    for name, kind in PROMISED.items():
        assert isinstance(summary[name], kind), name
    assert summary["lossless"] is True
    assert summary["num_lossless"] == summary["num_lossless_checked"] == 3
    assert (summary["target"], summary["seed"], summary["train_steps"]) == ("tiny-random", 0, 8)
    assert len(summary["acceptance_by_slot"]) == 7  # type: ignore[arg-type]
    assert 1 <= summary["acceptance_length"] <= 8  # type: ignore[operator]
    assert tomllib.loads((finished_run / "config.toml").read_text(encoding="utf-8"))["train"]["max_steps"] == 8
    steps = [json.loads(line) for line in (finished_run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [step["step"] for step in steps] == list(range(1, 9))
    events = [json.loads(line) for line in (finished_run / "events.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [event["event"] for event in events][:1] + [event["event"] for event in events][-1:] == ["start", "end"]


def test_checkpoint_export_and_summary_hold_the_same_weights(finished_run: Path) -> None:
    checkpoint, _, _ = load_checkpoint(finished_run)
    assert params_sha256(checkpoint) == read_json(finished_run / "summary.json")["params_sha256"]
    exported = read_drafter(finished_run / "drafter")
    assert params_sha256(exported) == params_sha256(checkpoint.to(torch.bfloat16))


def test_two_runs_with_one_seed_end_with_the_same_weights_and_another_seed_with_others(
    finished_run: Path, settings_of_run: list[str], tmp_path: Path
) -> None:
    hashes = {}
    for seed in (0, 1):
        overrides = [*settings_of_run, "eval.num_prompts=0", "eval.num_timed=0", f"seed={seed}"]
        done = draftsmith("train", CONFIGS / "tiny-cpu.toml", *overrides, f"run.dir={tmp_path / str(seed)}")
        assert done.code == 0, done.err
        hashes[seed] = read_json(tmp_path / str(seed) / "summary.json")["params_sha256"]
    assert hashes[0] == read_json(finished_run / "summary.json")["params_sha256"]
    assert hashes[1] != hashes[0]


def test_the_tiny_recipe_works_as_it_ships(tmp_path: Path) -> None:
    """With its own conversations; only the number of steps is cut."""
    done = draftsmith(
        "train", CONFIGS / "tiny-cpu.toml", "train.max_steps=4", "eval.num_timed=0", f"run.dir={tmp_path / 'run'}"
    )
    assert done.code == 0, done.err
    summary = read_json(tmp_path / "run" / "summary.json")
    assert summary["lossless"] is True
    assert summary["num_lossless_checked"] == 16
    assert "Drafter for tiny-random" in done.out
    assert "16 of 16 answers (float32)" in done.out


def test_features_kept_on_disk_give_the_weights_of_features_made_anew(
    finished_run: Path, settings_of_run: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("draftsmith.run.opening.cache_root", lambda: tmp_path / "cache")
    hashes = set()
    for name in ("made", "reused"):
        overrides = [*settings_of_run, "target.cache=disk", "eval.num_prompts=0", "eval.num_timed=0"]
        done = draftsmith("train", CONFIGS / "tiny-cpu.toml", *overrides, f"run.dir={tmp_path / name}")
        assert done.code == 0, done.err
        hashes.add(read_json(tmp_path / name / "summary.json")["params_sha256"])
    assert len(list((tmp_path / "cache" / "features").glob("*/features.bin"))) == 1
    assert len(hashes) == 1


@pytest.mark.parametrize("cache", ["none", "disk"])
def test_samples_longer_than_a_batch_may_be_are_cut_and_trained_on(
    cache: str, settings_of_run: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("draftsmith.run.opening.cache_root", lambda: tmp_path / "cache")
    overrides = [*settings_of_run, "batching.max_tokens=60", f"target.cache={cache}", "eval.num_timed=0"]
    done = draftsmith("train", CONFIGS / "tiny-cpu.toml", *overrides, f"run.dir={tmp_path / 'run'}")
    assert done.code == 0, done.err
    summary = read_json(tmp_path / "run" / "summary.json")
    assert summary["lossless"] is True
    assert summary["train_context_tokens"] <= 8 * 60  # type: ignore[operator]


def test_a_dry_run_shows_the_plan_and_leaves_nothing(
    settings_of_run: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_weights(*_arguments: object, **_settings: object) -> None:
        raise AssertionError("a dry run loads no weights")

    monkeypatch.setattr("transformers.AutoModelForCausalLM.from_pretrained", no_weights)
    shown = draftsmith("train", CONFIGS / "tiny-cpu.toml", *settings_of_run, f"run.dir={tmp_path / 'run'}", "--dry-run")
    assert shown.code == 0, shown.err
    assert shown.out.strip()
    assert not list(tmp_path.iterdir())


def test_eval_measures_again_with_other_settings(finished_run: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished_run, run)
    done = draftsmith("eval", run, "eval.num_prompts=2", "eval.max_new_tokens=6", "eval.num_timed=0")
    assert done.code == 0, done.err
    summary = read_json(run / "summary.json")
    assert (summary["num_lossless_checked"], summary["lossless"]) == (2, True)
    assert summary["params_sha256"] == read_json(finished_run / "summary.json")["params_sha256"]
    assert "2 of 2 answers" in done.out


def test_export_writes_the_newest_checkpoint(finished_run: Path, tmp_path: Path) -> None:
    done = draftsmith("export", finished_run, tmp_path / "drafter")
    assert done.code == 0, done.err
    assert str(tmp_path / "drafter") in done.out
    written, first = (d / "model.safetensors" for d in (tmp_path / "drafter", finished_run / "drafter"))
    assert written.read_bytes() == first.read_bytes()


def test_prepare_says_what_became_of_every_row(tmp_path: Path) -> None:
    rows = [chat_row("Hi", "Hello", "a"), chat_row("Hi", None, "b"), chat_row("Hey", "You", "c")]
    source = write_jsonl(tmp_path / "rows.jsonl", rows)
    done = draftsmith("prepare", source, tmp_path / "store", "--target", "tiny-random", "--holdout", "0")
    assert done.code == 0, done.err
    assert "2 samples from 2 of 3 rows" in done.out
    assert "rejected: 1 x no assistant turn (first: line 2: no assistant turn" in done.out
    store = TokenStore.open(tmp_path / "store")
    assert store.ids == ["a", "c"]


def test_prepare_takes_several_sources_with_weights_and_says_what_each_gave(tmp_path: Path) -> None:
    names = ("a", "b")
    for name in names:
        write_jsonl(tmp_path / f"{name}.jsonl", [chat_row(f"Say {i}", "bread", str(i)) for i in range(20)])
    sources = [f"{weight}:{tmp_path / name}.jsonl" for weight, name in zip((1, 3), names, strict=True)]
    options = ["--target", "tiny-random", "--holdout", "0", "--truncated", "cut", "--seed", "3"]
    done = draftsmith("prepare", *sources, tmp_path / "store", *options)
    assert done.code == 0, done.err
    assert "b.jsonl: 20 of 20 rows" in done.out
    assert "left out to keep the weights" in done.out
    done = draftsmith("prepare", *sources, tmp_path / "all", *options, "--stopping-strategy", "all_exhausted")
    assert done.code == 0, done.err
    assert "noted" in done.out
    assert "read again to keep the weights" in done.out
    assert "left out" not in done.out


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stopped_prepare_says_that_the_same_command_goes_on_and_it_does(
    number: signal.Signals, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_jsonl(tmp_path / "rows.jsonl", [chat_row(f"Say {i}", "bread", str(i)) for i in range(20)])
    module = importlib.import_module("draftsmith.data.prepare")
    command = ["prepare", source, tmp_path / "store", "--target", "tiny-random"]
    append = module.StoreWriter.append

    def stopped(writer: Any, batch: Any) -> None:
        append(writer, batch)
        signal.raise_signal(number)

    monkeypatch.setattr(module, "BATCH_ROWS", 8)
    monkeypatch.setattr(module.StoreWriter, "append", stopped)
    done = draftsmith(*command)
    assert done.code == code
    assert f"stopped by {number.name}; the same command goes on from here" in done.err
    monkeypatch.setattr(module.StoreWriter, "append", append)
    assert "20 of 20 rows" in draftsmith(*command).out


def test_rendered_text_can_be_prepared_with_markers_of_its_own(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "rows.jsonl", [{"text": "Q: Hi\nA: Hello\n\n"}])
    markers = ["--text-markers", "A:", "\\n\\n"]
    done = draftsmith("prepare", source, tmp_path / "store", "--target", "tiny-random", "--holdout", "0", *markers)
    assert done.code == 2, "an end of blanks tells no answer"
    markers = ["--text-markers", "\\nA:", "o"]
    done = draftsmith("prepare", source, tmp_path / "store", "--target", "tiny-random", "--holdout", "0", *markers)
    assert done.code == 0, done.err
    assert "1 samples from 1 of 1 rows" in done.out


def test_a_prepared_store_can_be_trained_on(conversations: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    done = draftsmith("prepare", conversations, store, "--target", "tiny-random", "--holdout", "0.15")
    assert done.code == 0, done.err
    (tmp_path / "mine.toml").write_text(
        f'num_threads = 1\n[target]\nmodel = "tiny-random"\ndtype = "float32"\n[data]\nstore = "{store}"\n'
        "[drafter]\nnum_layers = 1\nblock_size = 4\nnum_anchors = 4\n[train]\nmax_steps = 2\n"
        "[eval]\nnum_prompts = 1\nnum_timed = 0\nmax_new_tokens = 4\n",
        encoding="utf-8",
    )
    done = draftsmith("train", tmp_path / "mine.toml", f"run.dir={tmp_path / 'run'}")
    assert done.code == 0, done.err
    assert not (tmp_path / "run" / "store").exists()
    assert read_json(tmp_path / "run" / "summary.json")["lossless"] is True


def test_regenerate_writes_the_targets_own_answers_and_goes_on_after_a_torn_line(
    target: Target, tokenizer: object, tmp_path: Path
) -> None:
    rows = [chat_row(f"Count to {number}.", "an old answer", f"r{number}") for number in range(6)]
    source = write_jsonl(tmp_path / "asked.jsonl", rows)
    options = ["--target", "tiny-random", "--max-new-tokens", "10", "--batch-size", "2", "--dtype", "bfloat16"]
    done = draftsmith("regenerate", source, tmp_path / "whole.jsonl", *options)
    assert done.code == 0, done.err
    assert "6 conversations answered now, 0 before" in done.out
    whole = (tmp_path / "whole.jsonl").read_bytes()
    written = [json.loads(line) for line in whole.splitlines()]
    assert [row["id"] for row in written] == [row["id"] for row in rows]
    assert all(row["messages"][-1]["content"] != "an old answer" for row in written)
    lines = whole.split(b"\n")
    made_with = {"model": "tiny-random", "dtype": "bfloat16", "revision": None, "max_new_tokens": 10}
    made_with |= {"temperature": 0.0, "seed": 0, "template": {}}
    header = json.dumps({"made_with": made_with}).encode()
    (tmp_path / "torn.jsonl.partial").write_bytes(b"\n".join([header, *lines[:3], lines[3][:25]]))
    done = draftsmith("regenerate", source, tmp_path / "torn.jsonl", *options)
    assert done.code == 0, done.err
    assert "3 conversations answered now, 3 before" in done.out
    assert (tmp_path / "torn.jsonl").read_bytes() == whole
    assert not (tmp_path / "torn.jsonl.partial").exists()


def test_sampled_answers_depend_on_the_seed_and_not_on_the_batch(tmp_path: Path) -> None:
    rows = [chat_row(f"Count to {number}.", None, f"r{number}") for number in range(4)]
    source = write_jsonl(tmp_path / "asked.jsonl", rows)
    texts = {}
    for seed, batch_size in [(0, 4), (0, 1), (1, 4)]:
        made = tmp_path / f"{seed}-{batch_size}.jsonl"
        done = draftsmith(
            *("regenerate", source, made, "--target", "tiny-random", "--max-new-tokens", "8"),
            *("--temperature", "1.0", "--seed", seed, "--batch-size", batch_size),
        )
        assert done.code == 0, done.err
        texts[seed, batch_size] = made.read_bytes()
    assert texts[0, 4] == texts[0, 1] != texts[1, 4]


def test_generated_answers_are_those_of_plain_decoding(target: Target, tokenizer: object, tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "asked.jsonl", [chat_row("Say bread.", None, "r")])
    done = draftsmith(
        *("regenerate", source, tmp_path / "made.jsonl", "--target", "tiny-random", "--max-new-tokens", "9")
    )
    assert done.code == 0, done.err
    (row,) = (json.loads(line) for line in (tmp_path / "made.jsonl").read_text(encoding="utf-8").splitlines())
    turns = [{"role": "user", "content": "Say bread."}]
    prompt = list(tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_dict=False))  # type: ignore[attr-defined]
    (ids,) = generate(target, [prompt], max_new_tokens=9)
    assert row["messages"][-1]["content"] == tokenizer.decode(ids, skip_special_tokens=True)  # type: ignore[attr-defined]
