"""The walk over a finished text counts what the decoder counted while it wrote that text."""

from __future__ import annotations

import pytest

from draftsmith.drafter import Drafter
from draftsmith.errors import ModelError
from draftsmith.evaluation import speculate, walk
from draftsmith.target import Target
from helpers import new_drafter, with_shape


def test_the_walk_over_our_own_answer_is_what_the_decoder_committed(
    target: Target, trained: Drafter, prompts: list[list[int]]
) -> None:
    lengths = set()
    for prompt in prompts:
        (answer,) = speculate(trained, target, [prompt], max_new_tokens=40)
        walked = walk(trained, target, prompt, answer.tokens)
        assert walked[:-1] == answer.committed[:-1]
        assert sum(walked) == len(answer.tokens) - 1
        lengths |= set(walked)
    assert len(lengths) > 2  # accepted now and then, or the comparison is worth nothing


def test_an_answer_of_one_token_has_no_verification(target: Target, trained: Drafter, prompts: list[list[int]]) -> None:
    assert walk(trained, target, prompts[0], [40]) == []


def test_a_drafter_of_another_target_is_refused(target: Target, prompts: list[list[int]]) -> None:
    drafter = new_drafter(target)
    drafter.shape = with_shape(drafter, vocab_size=7)
    with pytest.raises(ModelError, match="vocabulary 7, but tiny-random has 100"):
        walk(drafter, target, prompts[0], [40, 41])
