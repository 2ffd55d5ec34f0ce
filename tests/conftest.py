"""Shared, expensive things: the tiny target, its tokenizer, a few conversations, a briefly trained drafter."""

from __future__ import annotations

import os
import signal

os.environ["HF_HUB_OFFLINE"] = "1"  # before any import of a hub client: no test may reach the network
os.environ["COLUMNS"] = "200"

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import torch

from draftsmith.config import TargetConfig
from draftsmith.drafter import Drafter
from draftsmith.target import Target, generate, load_target, load_tokenizer
from draftsmith.training import TrainState, train_step
from helpers import CONFIGS, chat_row, draftsmith, feature_batch, new_drafter, tiny_config, write_jsonl

torch.set_num_threads(1)
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts what runs in the background without it
# The same examples every time: what a change breaks is then what the change broke.
hypothesis.settings.register_profile("reproducible", derandomize=True, database=None)
hypothesis.settings.load_profile("reproducible")

TINY = TargetConfig(model="tiny-random", dtype="float32")
QUESTIONS = ("Continue: 3, 7, 11", "Say bread 3 times.", "Reverse: lemon table", "Spell cat.", "Name a colour, please")


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Commands set threads and determinism for their process; here the process belongs to all tests."""
    yield
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(False)


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    return load_tokenizer(TINY)


@pytest.fixture(scope="session")
def target() -> Target:
    return load_target(TINY)


@pytest.fixture(scope="session")
def prompts(tokenizer: Any) -> list[list[int]]:
    """Five chat prompts of different lengths."""
    turns = [[{"role": "user", "content": question}] for question in QUESTIONS]
    return [list(tokenizer.apply_chat_template(t, add_generation_prompt=True, return_dict=False)) for t in turns]


@pytest.fixture(scope="session")
def answers(target: Target, prompts: list[list[int]]) -> list[list[int]]:
    """The target's greedy answers, 32 tokens or up to the end token."""
    return generate(target, prompts, max_new_tokens=32)


@pytest.fixture(scope="session")
def trained(target: Target, prompts: list[list[int]], answers: list[list[int]]) -> Drafter:
    """A drafter trained for a moment on the answers above: it agrees sometimes. Tests must not change it."""
    config = tiny_config("train.lr=5e-3")
    drafter = new_drafter(target, seed=1)
    state = TrainState.create(drafter, config)
    rows = [[*prompt, *answer] for prompt, answer in zip(prompts, answers, strict=True)]
    item = feature_batch(target, rows, [len(prompt) for prompt in prompts])
    for _ in range(25):
        train_step(state, item, target, config, progress=0.3)
    return drafter.requires_grad_(False)


@pytest.fixture(scope="session")
def conversations(tmp_path_factory: pytest.TempPathFactory, target: Target, tokenizer: Any) -> Path:
    """Forty conversations that the tiny target answered, as a file."""
    questions = [f"{question} {number}" for question in QUESTIONS for number in range(8)]
    turns = [[{"role": "user", "content": question}] for question in questions]
    asked = [list(tokenizer.apply_chat_template(t, add_generation_prompt=True, return_dict=False)) for t in turns]
    texts = [tokenizer.decode(ids) for ids in generate(target, asked, max_new_tokens=24)]
    rows = [chat_row(q, text, f"c{i}") for i, (q, text) in enumerate(zip(questions, texts, strict=True))]
    return write_jsonl(tmp_path_factory.mktemp("conversations") / "conversations.jsonl", rows)


@pytest.fixture(scope="session")
def settings_of_run(conversations: Path) -> list[str]:
    """Overrides of configs/tiny-cpu.toml that make a run of seconds."""
    return [
        f"data.conversations={conversations}",
        "data.holdout=0.15",
        "train.max_steps=8",
        "eval.num_prompts=3",
        "eval.max_new_tokens=12",
        "eval.num_timed=1",
    ]


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory: pytest.TempPathFactory, settings_of_run: list[str]) -> Path:
    """A run directory made by `draftsmith train`. Tests must not change it."""
    run = tmp_path_factory.mktemp("runs") / "finished"
    done = draftsmith("train", CONFIGS / "tiny-cpu.toml", *settings_of_run, f"run.dir={run}")
    assert done.code == 0, done.err
    return run
