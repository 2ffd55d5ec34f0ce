"""Bad input ends with exit code 2 and one clear line: the value, the place, the way out; nothing half-written stays."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import shutil
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from draftsmith.data.store import seal
from draftsmith.drafter import Drafter
from draftsmith.export import export_drafter
from draftsmith.target import Target
from draftsmith.training import Saver, TrainState
from helpers import CONFIGS, Finished, chat_row, draftsmith, new_drafter, write_jsonl

TINY = CONFIGS / "tiny-cpu.toml"


def refused(done: Finished, *parts: str) -> None:
    """Exit code 2, one line that starts with the command's name and holds every part, no traceback."""
    message = done.err.splitlines()[-1]
    assert done.code == 2, done.err
    assert message.startswith("draftsmith: ")
    assert "Traceback" not in done.err
    assert sum(line.startswith("draftsmith: ") for line in done.err.splitlines()) == 1
    for part in parts:
        assert part in message


def test_an_unknown_setting_suggests_the_nearest(tmp_path: Path) -> None:
    done = draftsmith("train", TINY, "train.max_stepz=3", f"run.dir={tmp_path / 'run'}")
    refused(done, "unknown setting train.max_stepz", "did you mean train.max_steps?", str(TINY))
    assert not list(tmp_path.iterdir())


def test_a_missing_configuration_is_named(tmp_path: Path) -> None:
    refused(draftsmith("train", tmp_path / "none.toml"), str(tmp_path / "none.toml"), "does not exist", "see configs/")


def test_missing_conversations_are_named(tmp_path: Path) -> None:
    missing = tmp_path / "none.jsonl"
    refused(
        draftsmith("prepare", missing, tmp_path / "store", "--target", "tiny-random"), str(missing), "does not exist"
    )
    refused(
        draftsmith("regenerate", missing, tmp_path / "made.jsonl", "--target", "tiny-random"),
        str(missing),
        "does not exist",
    )
    assert not list(tmp_path.iterdir())
    done = draftsmith("train", TINY, f"data.conversations={missing}", f"run.dir={tmp_path / 'run'}")
    refused(done, str(missing), "does not exist")


@pytest.mark.parametrize("command", ["prepare", "regenerate"])
def test_a_source_without_a_name_is_refused_and_the_current_directory_is_not_read(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_jsonl(tmp_path / "rows.jsonl", [chat_row("Hi", "Hello", "a")])
    monkeypatch.chdir(tmp_path)
    refused(draftsmith(command, "", "made", "--target", "tiny-random"), "source '' names nothing to read")
    assert [path.name for path in tmp_path.iterdir()] == ["rows.jsonl"]


def test_a_missing_store_is_named(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(
        f'[target]\nmodel = "tiny-random"\n[data]\nstore = "{tmp_path / "none"}"\n[train]\nmax_steps = 1\n',
        encoding="utf-8",
    )
    done = draftsmith("train", tmp_path / "mine.toml", f"run.dir={tmp_path / 'run'}")
    refused(done, str(tmp_path / "none"), "draftsmith prepare")


def test_a_row_without_an_assistant_turn_is_named_with_its_line(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "rows.jsonl", [chat_row("Hi", "Hello", "a"), chat_row("Hi", None, "b")])
    command = ["prepare", source, tmp_path / "store", "--target", "tiny-random", "--strict"]
    refused(draftsmith(*command), str(source), "line 2: no assistant turn", "repair the row")
    only = write_jsonl(tmp_path / "only.jsonl", [chat_row("Hi", None, "b")])
    done = draftsmith("prepare", only, tmp_path / "store", "--target", "tiny-random")
    refused(done, str(only), "none of 1 rows can be used", "no assistant turn")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["only.jsonl", "rows.jsonl"]


def test_no_supervised_token_left_after_truncation_is_named_with_the_limit(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "rows.jsonl", [chat_row("A rather long question", "Hello", "a")])
    done = draftsmith("prepare", source, tmp_path / "store", "--target", "tiny-random", "--max-length", "16")
    refused(done, "no supervised token left after truncation at 16", "supervision starts at token")
    done = draftsmith(
        "train", TINY, f"data.conversations={source}", "data.max_length=16", f"run.dir={tmp_path / 'run'}"
    )
    refused(done, "no supervised token left after truncation at 16")


def test_a_target_without_a_chat_template_is_named(tokenizer: Any, target: Target, tmp_path: Path) -> None:
    directory = tmp_path / "base-model"
    target.model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    (directory / "chat_template.jinja").unlink()
    source = write_jsonl(tmp_path / "rows.jsonl", [chat_row("Hi", "Hello", "a")])
    expected = [str(directory), "has no chat template", "instruction-tuned"]
    refused(draftsmith("prepare", source, tmp_path / "store", "--target", directory), *expected)
    refused(draftsmith("train", TINY, f"target.model={directory}", f"run.dir={tmp_path / 'run'}"), *expected)
    refused(draftsmith("regenerate", source, tmp_path / "made.jsonl", "--target", directory), *expected)
    assert not (tmp_path / "store").exists()
    assert not (tmp_path / "made.jsonl").exists()


def test_a_target_that_is_not_there_is_named(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "rows.jsonl", [chat_row("Hi", "Hello", "a")])
    missing = tmp_path / "no-model"
    done = draftsmith("prepare", source, tmp_path / "store", "--target", missing)
    refused(done, str(missing), "does not exist")
    done = draftsmith("train", TINY, "target.model=nobody/no-such-model", f"run.dir={tmp_path / 'run'}")
    assert done.code == 2
    assert "nobody/no-such-model" in done.err
    assert "Traceback" not in done.err


@pytest.mark.parametrize("name", ["smollm2-135", "no/such/model", "./none", "gpt-none"])
def test_a_misspelt_target_fails_at_once_and_asks_no_network(name: str, tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "rows.jsonl", [chat_row("Hi", "Hello", "a")])
    start = time.monotonic()
    done = draftsmith("prepare", source, tmp_path / "store", "--target", name)
    refused(done, name, "does not exist", "smollm2-135m" if "/" not in name else "")
    assert time.monotonic() - start < 5


@pytest.mark.parametrize(
    ("token_id", "reason"),
    [
        (1, "which the chat template writes ('<|im_start|>')"),
        (2, "which is the eos token"),
        (5000, "outside the target's"),
    ],
)
def test_a_mask_id_that_cannot_serve_is_named_with_the_reason(
    token_id: int, reason: str, settings_of_run: list[str], tmp_path: Path
) -> None:
    done = draftsmith(
        *("train", TINY, *settings_of_run, f"drafter.mask_token_id={token_id}", f"run.dir={tmp_path / 'run'}")
    )
    refused(done, f"drafter.mask_token_id is {token_id}", reason, "choose a reserved, unused token")


def test_after_bad_input_the_corrected_command_works_in_the_same_directory(
    settings_of_run: list[str], tmp_path: Path
) -> None:
    command = ["train", TINY, *settings_of_run, "eval.num_prompts=0", "eval.num_timed=0", f"run.dir={tmp_path / 'run'}"]
    refused(draftsmith(*command, "drafter.mask_token_id=1"), "drafter.mask_token_id is 1")
    assert not (tmp_path / "run").exists()
    done = draftsmith(*command)
    assert done.code == 0, done.err


def test_a_directory_that_already_holds_a_run_is_left_alone(
    finished_run: Path, settings_of_run: list[str], tmp_path: Path
) -> None:
    before = {path: path.stat().st_mtime_ns for path in finished_run.rglob("*")}
    done = draftsmith("train", TINY, *settings_of_run, f"run.dir={finished_run}")
    refused(done, f"{finished_run} already holds a run", "choose another directory with run.dir=")
    assert {path: path.stat().st_mtime_ns for path in finished_run.rglob("*")} == before


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"vocab_size": 77}, ["vocabulary 77", "tiny-random has"]),
        ({"hidden_size": 32}, ["hidden size 32", "tiny-random has 64"]),
        ({"num_target_layers": 12}, ["number of layers 12", "tiny-random has 8"]),
    ],
)
def test_a_drafter_of_another_target_is_named_with_both_values(
    changes: dict[str, Any], named: Sequence[str], finished_run: Path, target: Target, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished_run, run)
    shutil.rmtree(run / "drafter")
    shape = dataclasses.replace(new_drafter(target).shape, **changes)
    export_drafter(Drafter(shape), run / "drafter", card="")
    refused(draftsmith("eval", run, "eval.num_timed=0"), *named, "use the target that it was trained on")


def test_a_store_of_a_larger_vocabulary_is_named_with_both_sizes(
    settings_of_run: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("draftsmith.data.TokenStore.vocab_size", 5000)
    done = draftsmith("train", TINY, *settings_of_run, f"run.dir={tmp_path / 'run'}")
    refused(done, "5000 token ids", "prepare it again with this target")


def test_taps_that_the_target_does_not_have_are_named(settings_of_run: list[str], tmp_path: Path) -> None:
    done = draftsmith("train", TINY, *settings_of_run, "target.layer_ids=[1, 9]", f"run.dir={tmp_path / 'run'}")
    refused(done, "target.layer_ids is [1, 9]", "between 0 and 6")


def test_nothing_held_out_to_measure_on_is_told_before_training(settings_of_run: list[str], tmp_path: Path) -> None:
    done = draftsmith("train", TINY, *settings_of_run, "data.holdout=0", f"run.dir={tmp_path / 'run'}")
    refused(done, "holds nothing out to measure on", "raise data.holdout, or set eval.num_prompts=0")


def test_a_full_disk_while_exporting_leaves_nothing_behind(
    finished_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("draftsmith.export.directory.save_file", full)
    done = draftsmith("export", finished_run, tmp_path / "drafter")
    refused(done, str(tmp_path / "drafter"), "No space left on device")
    assert not list(tmp_path.iterdir())


def full(*_arguments: object, **_settings: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("place", ["training.checkpoint", "export.directory"])
def test_a_full_disk_at_the_end_of_training_is_one_clear_line(
    place: str, settings_of_run: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"draftsmith.{place}.save_file", full)
    run = tmp_path / "run"
    done = draftsmith("train", TINY, *settings_of_run, "train.max_steps=1", f"run.dir={run}")
    refused(done, str(run), "cannot be written", "No space left on device")
    assert not [path for path in run.rglob("*") if ".tmp-" in path.name]
    assert not (run / "drafter").exists()


def test_answers_that_cannot_be_written_are_one_clear_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write_jsonl(tmp_path / "rows.jsonl", [chat_row("Hi", "Hello", "a")])
    options = ["--target", "tiny-random", "--max-new-tokens", "2"]
    done = draftsmith("regenerate", source, source / "made.jsonl", *options)
    refused(done, str(source / "made.jsonl"), "cannot be written")
    monkeypatch.setattr("draftsmith.data.answers.atomic_write", full)
    done = draftsmith("regenerate", source, tmp_path / "new" / "made.jsonl", *options)
    refused(done, str(tmp_path / "new" / "made.jsonl"), "No space left on device", "kept")
    monkeypatch.undo()
    done = draftsmith("regenerate", source, tmp_path / "new" / "made.jsonl", *options)
    assert "0 conversations answered now, 1 before" in done.out


def test_a_budget_too_small_for_a_sample_is_told_before_anything_is_made(
    settings_of_run: list[str], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    done = draftsmith(
        "train", TINY, *settings_of_run, "batching.max_tokens=10", "batching.overlong=error", f"run.dir={run}"
    )
    refused(done, "10")
    assert not run.exists()


def test_exporting_over_something_is_refused(finished_run: Path, tmp_path: Path) -> None:
    refused(draftsmith("export", finished_run, tmp_path), str(tmp_path), "already exists")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("command", ["eval", "train", "chat"])
def test_a_directory_without_a_config_is_called_no_run_and_not_a_missing_configuration(
    command: str, tmp_path: Path
) -> None:
    refused(draftsmith(command, tmp_path), f"{tmp_path} is no run directory")


def test_answers_longer_than_the_context_are_told_before_any_row_is_asked(tmp_path: Path) -> None:
    rows = write_jsonl(tmp_path / "rows.jsonl", [chat_row("Hi", "Hello.", "a")])
    asked = ("regenerate", rows, tmp_path / "made.jsonl", "--target", "tiny-random")
    refused(draftsmith(*asked, "--max-new-tokens", 10**9), "--max-new-tokens is 1000000000, but tiny-random takes")
    assert not (tmp_path / "made.jsonl.partial").exists()


def test_weights_from_nowhere_are_named(settings_of_run: list[str], tmp_path: Path) -> None:
    missing = tmp_path / "none"
    done = draftsmith("train", TINY, *settings_of_run, "--from", missing, f"run.dir={tmp_path / 'run'}")
    refused(done, f"{missing} is no directory; --from takes a run")


def test_a_directory_without_a_model_is_no_target(tmp_path: Path) -> None:
    rows = write_jsonl(tmp_path / "rows.jsonl", [chat_row("Hi", "Hello.", "a")])
    done = draftsmith("prepare", rows, tmp_path / "store", "--target", tmp_path)
    refused(done, f"{tmp_path} holds no config.json, so it is no model")


@pytest.mark.parametrize("option", ["--python", "--target-gguf"])
def test_what_verify_is_to_ask_is_looked_at_first_and_named(option: str, finished_run: Path, tmp_path: Path) -> None:
    silent = tmp_path / "silent"
    if option == "--python":
        silent.write_text("#!/bin/sh\nexit 1\n", encoding="utf-8")
        silent.chmod(0o755)
    refused(draftsmith("verify", finished_run / "drafter", option, silent), str(silent))


def test_a_directory_is_no_file_of_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = write_jsonl(tmp_path / "rows.jsonl", [chat_row("Hi", "Hello.", "a")])
    monkeypatch.chdir(tmp_path)
    refused(draftsmith("regenerate", rows, ".", "--target", "tiny-random"), "is a directory; name the file")


@pytest.mark.parametrize("command", ["eval", "export"])
def test_a_directory_that_holds_no_run_is_named(command: str, tmp_path: Path) -> None:
    done = draftsmith(command, tmp_path / "none", *([tmp_path / "drafter"] if command == "export" else []))
    refused(done, str(tmp_path / "none"))
    assert not list(tmp_path.iterdir())


def test_a_run_directory_that_cannot_be_written_is_named(settings_of_run: list[str], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way", encoding="utf-8")
    done = draftsmith("train", TINY, *settings_of_run, f"run.dir={tmp_path / 'file' / 'run'}")
    refused(done, str(tmp_path / "file" / "run"), "cannot be written")


@pytest.mark.parametrize(
    "arguments", [["trian"], ["train"], ["prepare", "a"], ["train", "x.toml", "--nonsense"], ["prepare", "a", "b"]]
)
def test_a_command_that_cannot_be_read_ends_with_exit_code_2(arguments: list[str]) -> None:
    done = draftsmith(*arguments)
    assert done.code == 2
    assert "Traceback" not in done.err


def test_a_store_of_another_tokenizer_is_refused_although_the_sizes_agree(
    finished_run: Path, settings_of_run: list[str], tmp_path: Path
) -> None:
    store = tmp_path / "store"
    shutil.copytree(finished_run / "store", store)
    meta = json.loads((store / "meta.json").read_text(encoding="utf-8"))
    meta["made_from"]["tokenizer_sha256"] = "0" * 64
    (store / "meta.json").write_text(json.dumps(seal(meta)), encoding="utf-8")
    settings = [s for s in settings_of_run if not s.startswith("data.conversations")]
    config = tmp_path / "store.toml"
    lines = TINY.read_text(encoding="utf-8").splitlines()
    text = "\n".join(line for line in lines if not line.startswith(("conversations", "truncated")))
    config.write_text(text.replace("[data]", f"[data]\nstore = '{store}'"), encoding="utf-8")
    done = draftsmith("train", config, *settings, f"run.dir={tmp_path / 'run'}")
    refused(done, "made with another tokenizer (000000000000)", "prepare it again with this target")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("command", [["train"], ["train", "--dry-run"]])
def test_batches_that_cut_every_answer_off_are_refused(
    command: list[str], settings_of_run: list[str], tmp_path: Path
) -> None:
    done = draftsmith(*command, TINY, *settings_of_run, "batching.max_tokens=20", f"run.dir={tmp_path / 'run'}")
    refused(done, "batching.max_tokens is 20", "before any answer begins")


def test_a_directory_with_somebody_elses_files_is_left_alone(settings_of_run: list[str], tmp_path: Path) -> None:
    precious = tmp_path / "run" / "environment.json"
    precious.parent.mkdir()
    precious.write_text("precious", encoding="utf-8")
    done = draftsmith("train", TINY, *settings_of_run, f"run.dir={tmp_path / 'run'}")
    refused(done, "is not an empty directory")
    assert precious.read_text(encoding="utf-8") == "precious"


def test_eval_refuses_settings_that_describe_another_run(finished_run: Path) -> None:
    refused(draftsmith("eval", finished_run, "target.model=other"), "only eval.*, device and")


@pytest.mark.parametrize("argument", ["tokenize=false", "tools=1", "day=1979-05-27"])
def test_template_arguments_that_are_not_the_templates_are_refused(argument: str, tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "asked.jsonl", [chat_row("Say bread.", "bread", "r")])
    options = ["--target", "tiny-random", "--template", argument]
    refused(draftsmith("prepare", source, tmp_path / "store", *options), "--template", "cannot be given")


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"messages": [{"role": "user", "content": "\ud800"}, {"role": "assistant", "content": "a"}]}, "not UTF-8"),
        ({"conversations": [{"from": ["human"], "value": "a"}, {"from": "gpt", "value": "b"}]}, "not a conversation"),
    ],
)
def test_one_odd_row_is_counted_and_does_not_end_the_rest(row: dict[str, Any], reason: str, tmp_path: Path) -> None:
    rows = [chat_row("Say bread.", "bread", "r"), row]
    source = tmp_path / "odd.jsonl"
    source.write_text("".join(json.dumps(each) + "\n" for each in rows), encoding="utf-8")
    done = draftsmith("prepare", source, tmp_path / "store", "--target", "tiny-random")
    assert done.code == 0, done.err
    assert f"rejected: 1 x {reason} (first: line 2" in done.out


def test_a_second_signal_while_saving_does_not_lose_what_was_trained(
    settings_of_run: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = Saver.save_now

    def impatient(self: Saver, state: TrainState) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        original(self, state)

    monkeypatch.setattr(Saver, "save_now", impatient)
    done = draftsmith("train", TINY, *settings_of_run, f"run.dir={tmp_path / 'run'}")
    assert done.code == 130, done.err
    assert "what was trained is in" in done.err
    assert (tmp_path / "run" / "drafter" / "model.safetensors").stat().st_mode & 0o777 == 0o644
