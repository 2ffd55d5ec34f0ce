"""Answers that a measurement keeps, as text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from draftsmith.report import read_run
from draftsmith.report.answers import answers_of
from draftsmith.run.examples import NUM_PER_SET, pieces


class Bytes:
    """A tokenizer whose tokens are single bytes of UTF-8."""

    def decode(self, tokens: list[int]) -> str:
        return bytes(tokens).decode("utf-8", errors="replace")


@pytest.mark.parametrize("text", ["plain", "é", "a😀b", "日本語", ""])
def test_pieces_put_together_are_the_text_also_where_a_character_takes_several_tokens(text: str) -> None:
    found = pieces(Bytes(), list(text.encode()))
    assert "".join(found) == text
    assert len(found) == len(text.encode())


def test_a_character_that_is_cut_for_good_is_shown_as_such() -> None:
    assert "".join(pieces(Bytes(), list("é".encode())[:1])) == "\ufffd"


def test_a_measured_run_shows_answers_that_end_as_its_tokens_do(finished_run: Path, tokenizer: Any) -> None:
    answers = answers_of(read_run(finished_run))
    assert len(answers) == NUM_PER_SET
    kept = json.loads((finished_run / "examples.json").read_text(encoding="utf-8"))["examples"]
    for answer, example in zip(answers, kept, strict=True):
        assert answer.prompt
        assert answer.forwards == len(example["committed"])
        # The last verification counts whole even where the limit of the measurement cut its tokens off.
        assert 1 <= len(answer.pieces) <= 1 + sum(example["committed"])
    assert 'id="examples"' in (finished_run / "report.html").read_text(encoding="utf-8")
