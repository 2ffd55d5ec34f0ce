"""The generator is deterministic, short, varied."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
from make_tiny_prompts import synthetic_prompts


def test_the_same_seed_gives_the_same_prompts_and_fewer_are_the_first_of_more() -> None:
    assert synthetic_prompts(50, seed=1) == synthetic_prompts(200, seed=1)[:50]
    assert synthetic_prompts(50, seed=1) != synthetic_prompts(50, seed=2)


def test_prompts_are_different_single_user_turns_of_10_to_60_ascii_characters() -> None:
    prompts = synthetic_prompts(500, seed=0)
    texts = [message["content"] for prompt in prompts for message in prompt.messages]
    assert len({prompt.id for prompt in prompts}) == len(set(texts)) == len(texts) == 500
    assert all(prompt.messages[0]["role"] == "user" for prompt in prompts)
    assert all(text.isascii() and text.isprintable() and 10 <= len(text) <= 60 for text in texts)


def test_prompts_do_not_change_between_versions() -> None:
    assert [prompt.messages[0]["content"] for prompt in synthetic_prompts(3, seed=0)] == [
        "Continue: 36, 37, 38",
        "Continue: 42, 46, 50",
        "Reverse: lemon table ocean",
    ]
