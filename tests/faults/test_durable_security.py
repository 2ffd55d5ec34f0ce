"""No code out of data, no credentials into files, nothing outside of the run directory."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path

import pytest
import torch

from draftsmith.errors import CheckpointError, ConfigError
from draftsmith.files import write_manifest
from draftsmith.redaction import redacted
from draftsmith.target import Target
from draftsmith.training import TrainState, newest_checkpoint, open_checkpoint, take_snapshot, write_snapshot
from helpers import CONFIGS, draftsmith, new_drafter, tiny_config
from processes import Executed

TINY = CONFIGS / "tiny-cpu.toml"
TOKENS = {
    "HF_TOKEN": "hf_CanaryCanaryCanaryCanary",
    "WANDB_API_KEY": "0123456789canary0123456789",
    "MY_PASSWORD": "canary-pass-word",
    "TOKENIZERS_PARALLELISM": "false",
}
SECRETS = ("hf_Canary", "canary0123", "canary-pass", "canary-url", "canary-query")


class Poison:
    """Unpickled, it makes a file."""

    def __init__(self, canary: Path) -> None:
        self._canary = canary

    def __reduce__(self) -> object:
        return os.mkdir, (str(self._canary),)


@pytest.mark.parametrize("name", ["drafter.safetensors", "optimizer.safetensors", "state.json"])
@pytest.mark.parametrize("how", ["pickle", "torch.save"])
def test_P15_a_poisoned_pickle_in_a_checkpoint_is_refused_and_never_loaded(
    name: str, how: str, target: Target, tmp_path: Path
) -> None:
    canary, run = tmp_path / "canary", tmp_path / "run"
    state = TrainState.create(new_drafter(target), tiny_config())
    for step in (1, 2):
        state.step = step
        newest = write_snapshot(run, take_snapshot(state, {}))
    if how == "pickle":
        (newest / name).write_bytes(pickle.dumps(Poison(canary)))
    else:
        torch.save({"weights": Poison(canary)}, newest / name)
    write_manifest(newest)  # whoever could write the file could write its hash
    with pytest.raises(CheckpointError, match="step-000002"):
        open_checkpoint(newest)
    checkpoint, _ = newest_checkpoint(run)
    assert checkpoint is not None
    assert checkpoint.step == 1
    assert not canary.exists()


@pytest.mark.parametrize("name", ["pytorch_model.bin", "drafter.pt"])
def test_P15_a_foreign_checkpoint_that_is_a_pickle_is_refused(
    name: str, settings_of_run: list[str], tmp_path: Path
) -> None:
    foreign, canary = tmp_path / "foreign", tmp_path / "canary"
    foreign.mkdir()
    torch.save({"weights": Poison(canary)}, foreign / name)
    for source in (foreign, foreign / name):
        done = draftsmith("train", TINY, *settings_of_run, "--from", source, f"run.dir={tmp_path / 'run'}")
        assert done.code == 2, done.err
        assert str(source) in done.err
        assert not (tmp_path / "run").exists()
    assert not canary.exists()


@pytest.mark.parametrize(
    "record",
    [
        "[]",
        "null",
        "{}",
        '{"format": 99}',
        '{"format": 1, "step": "x"}',
        '{"format": 1, "step": 1, "shape": []}',
        "[" * 100_000,
        '{"format": 1, "step": 1e999, "shape": {}}',
        "\x00",
    ],
    ids=range(9),
)
def test_P15_a_record_of_any_content_is_an_error_and_no_crash(record: str, target: Target, tmp_path: Path) -> None:
    directory = write_snapshot(tmp_path, take_snapshot(TrainState.create(new_drafter(target), tiny_config()), {}))
    (directory / "state.json").write_text(record, encoding="utf-8")
    write_manifest(directory)
    checkpoint, problems = newest_checkpoint(tmp_path)
    assert checkpoint is None
    assert str(directory) in problems[directory]


def test_P15_code_that_comes_with_a_model_does_not_run(settings_of_run: list[str], tmp_path: Path) -> None:
    model, canary = tmp_path / "model", tmp_path / "canary"
    model.mkdir()
    auto_map = {"AutoConfig": "code.Config", "AutoModelForCausalLM": "code.Model", "AutoTokenizer": "code.Tok"}
    (model / "config.json").write_text(json.dumps({"model_type": "custom", "auto_map": auto_map}), encoding="utf-8")
    (model / "tokenizer_config.json").write_text(json.dumps({"auto_map": {"AutoTokenizer": ["code.Tok", None]}}))
    (model / "code.py").write_text(f"import os\nos.mkdir({str(canary)!r})\n", encoding="utf-8")
    settings = [*settings_of_run, f"target.model={model}", f"run.dir={tmp_path / 'run'}"]
    assert draftsmith("train", TINY, *settings).code == 2
    assert not canary.exists()
    done = draftsmith("train", TINY, *settings, "target.trust_remote_code=true")
    assert done.code == 2
    assert "pin it with target.revision" in done.err
    assert not canary.exists()


@pytest.mark.parametrize(
    "text",
    [
        "seed = !!python/object/apply:os.system ['true']",
        "seed = 1979-05-27",
        "[target]\nmodel = {a = 1}",
        "seed = 99999999999999999999999999",
        "[train]\nlr = nan",
        "__import__ = 1",
        "[run]\ndir = 3",
        '[data]\nconversations = ["a"]',
        "\ufeffseed = 1",
    ],
)
def test_P15_odd_toml_is_one_line_and_leaves_nothing(text: str, tmp_path: Path) -> None:
    config = tmp_path / "odd.toml"
    config.write_text(text, encoding="utf-8")
    done = draftsmith("train", config)
    assert done.code == 2
    assert "Traceback" not in done.err
    assert [path.name for path in tmp_path.iterdir()] == ["odd.toml"]


@pytest.mark.parametrize("name", ["a b", "..", "über", "-x", "x" * 101, "a;b"])
def test_a_run_is_named_after_a_plain_word_or_not_at_all(name: str, tmp_path: Path) -> None:
    config = tmp_path / f"{name}.toml"
    config.write_text(TINY.read_text(encoding="utf-8"), encoding="utf-8")
    done = draftsmith("train", config)
    assert done.code == 2
    assert "cannot be named after" in done.err or not config.stem.strip(".")


def secrets_in(directory: Path) -> list[str]:
    return [
        f"{secret} in {path}"
        for path in directory.rglob("*")
        if path.is_file()
        for secret in SECRETS
        if secret.encode() in path.read_bytes()
    ]


def test_P16_a_run_with_tokens_in_its_environment_leaves_none_anywhere(
    settings_of_run: list[str], tmp_path: Path
) -> None:
    settings = [*settings_of_run, "train.max_steps=3", f"run.dir={tmp_path / 'run'}"]
    training = Executed(["train", TINY, *settings], tmp_path / "said.txt", env=TOKENS)
    assert training.wait() == 0, training.said
    assert (tmp_path / "run" / "report.html").exists()
    assert not secrets_in(tmp_path)


def test_P16_a_setting_that_holds_a_credential_is_refused_without_showing_it(
    settings_of_run: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_PASSWORD", TOKENS["MY_PASSWORD"])
    for value in (
        "https://me:canary-url@example.org/model",
        "https://example.org/model?token=canary-query",
        f"model-{TOKENS['MY_PASSWORD']}",
        f"model-{TOKENS['HF_TOKEN']}",
    ):
        done = draftsmith("train", TINY, *settings_of_run, f"target.model={value}", f"run.dir={tmp_path / 'run'}")
        assert done.code == 2
        assert "a setting holds a credential" in done.err
        assert not [secret for secret in SECRETS if secret in done.err + done.out]
        assert not (tmp_path / "run").exists()


def test_P16_an_error_that_quotes_a_credential_does_not_show_it(
    settings_of_run: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in TOKENS.items():
        monkeypatch.setenv(name, value)

    def failing(*_arguments: object, **_settings: object) -> None:
        raise RuntimeError(f"401 for https://u:canary-url@hub with {TOKENS['HF_TOKEN']} {TOKENS['WANDB_API_KEY']}")

    monkeypatch.setattr("draftsmith.target.FeatureWorker.__call__", failing)
    done = draftsmith("train", TINY, *settings_of_run, f"run.dir={tmp_path / 'run'}")
    assert done.code == 2
    assert "401 for https://***@hub with *** ***" in done.err
    assert not secrets_in(tmp_path)
    assert not [secret for secret in SECRETS if secret in done.err + done.out]


def test_P16_a_bug_keeps_its_traceback_without_the_credential(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_PASSWORD", TOKENS["MY_PASSWORD"])

    def broken(*_arguments: object, **_settings: object) -> None:
        raise ZeroDivisionError(TOKENS["MY_PASSWORD"])

    monkeypatch.setattr("draftsmith.run.starting.train", broken)
    done = draftsmith("train", TINY)
    assert done.code == 1
    assert "ZeroDivisionError: ***" in done.err


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("git+https://github.com/owner/name@main", "git+https://github.com/owner/name@main"),
        ("https://user:pw@host/x", "https://***@host/x"),
        ("https://host/x?api_key=abc&b=1", "https://host/x?api_key=***&b=1"),
        ("a@b.org wrote", "a@b.org wrote"),
        ("false", "false"),
        ("/etc/ssl/token", "/etc/ssl/token"),
    ],
)
def test_redaction_leaves_ordinary_text_alone(text: str, shown: str) -> None:
    environment = {"TOKENIZERS_PARALLELISM": "false", "A_TOKEN_FILE": "/etc/ssl/token", "PIN_TOKEN": "x"}
    assert redacted(text, environment) == shown


def test_overrides_that_hold_a_credential_are_not_quoted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_PASSWORD", TOKENS["MY_PASSWORD"])
    done = draftsmith("train", TINY, f"train.lr={TOKENS['MY_PASSWORD']}")
    assert done.code == 2
    assert TOKENS["MY_PASSWORD"] not in done.err
    with pytest.raises(ConfigError):
        tiny_config("train.lr=x")
