"""Shared, expensive things: the tiny target, its tokenizer, a few conversations, a briefly trained drafter."""

from __future__ import annotations

import os

os.environ["HF_HUB_OFFLINE"] = "1"  # before any import of a hub client: no test may reach the network
os.environ["COLUMNS"] = "200"

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from draftsmith.config import TargetConfig
from draftsmith.drafter import Drafter
from draftsmith.target import Target, generate, load_target, load_tokenizer
from draftsmith.training import TrainState, train_step
from helpers import feature_batch, new_drafter, tiny_config

torch.set_num_threads(1)

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
