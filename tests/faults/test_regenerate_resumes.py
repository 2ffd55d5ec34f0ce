"""An interrupted `regenerate` goes on where it stopped: no row twice, none lost, whatever is left of the last line."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from draftsmith.data import Regenerated, regenerate
from draftsmith.errors import DataError
from draftsmith.files import short_hash
from draftsmith.records import Conversation

ANSWER = "Größe → \u2028naïve\x85 日本"  # torn anywhere, also inside a character; it holds other line ends than \n
NAMES = ["a", "b", "c", "d", "e"]
MADE_WITH = {"target": "letters"}


class Letters:
    """A tokenizer of code points; 0 ends an answer."""

    def apply_chat_template(self, messages: Sequence[dict[str, Any]], **_settings: Any) -> list[int]:
        return [ord(letter) for message in messages for letter in message["content"]]

    def decode(self, ids: Sequence[int], **_settings: Any) -> str:
        return "".join(map(chr, ids))


def conversations(names: Sequence[str] = NAMES) -> list[Conversation]:
    asked = {"role": "user", "content": "?"}
    again = {"role": "user", "content": "and?"}
    return [Conversation(name, (asked, {"role": "assistant", "content": "old"}, again)) for name in names]


def header() -> bytes:
    """The first line of a file that `run` began."""
    prompts = short_hash([[row.id, row.messages] for row in conversations()])
    return json.dumps({"made_with": {**MADE_WITH, "template": {}, "prompts": prompts}}).encode()


def run(
    destination: Path, asked: list[str] | None = None, ends: Callable[[str], bool] = lambda name: True
) -> Regenerated:
    def answer(prompts: Sequence[Sequence[int]], turns: Sequence[str]) -> list[list[int]]:
        ids = [turn.split("/")[0] for turn in turns]
        if asked is not None:
            asked.extend(ids)
        return [[*map(ord, ANSWER + name), *([0] if ends(name) else [])] for name in ids]

    return regenerate(
        conversations(),
        destination,
        Letters(),
        answer,
        eos_token_ids=frozenset([0]),
        batch_size=2,
        made_with=MADE_WITH,
    )


@pytest.fixture
def whole(tmp_path: Path) -> list[bytes]:
    """The lines of a run that nothing interrupted."""
    run(tmp_path / "whole.jsonl")
    return (tmp_path / "whole.jsonl").read_bytes().split(b"\n")[:-1]


def test_every_assistant_turn_is_written_anew_in_the_order_of_the_input(whole: list[bytes]) -> None:
    rows = [json.loads(line) for line in whole]
    assert [row["id"] for row in rows] == NAMES
    for row in rows:
        assert [message["role"] for message in row["messages"]] == ["user", "assistant", "user", "assistant"]
        assert {m["content"] for m in row["messages"] if m["role"] == "assistant"} == {ANSWER + row["id"]}
        assert row["truncated"] is False


def test_whatever_is_left_of_the_last_line_the_end_is_the_same(whole: list[bytes], tmp_path: Path) -> None:
    destination = tmp_path / "made.jsonl"
    torn = whole[2]
    for left in [0, 1, *range(torn.index(b"Gr"), torn.index(b"Gr") + 30), len(torn) - 1, len(torn)]:
        (tmp_path / "made.jsonl.partial").write_bytes(b"\n".join([header(), *whole[:2], torn[:left]]))
        asked: list[str] = []
        made = run(destination, asked)
        assert destination.read_bytes().split(b"\n")[:-1] == whole
        assert sorted(set(asked)) == ["c", "d", "e"]  # a line without its end is made again
        assert (made.num_written, made.num_reused, made.num_truncated) == (3, 2, 0)
        assert not (tmp_path / "made.jsonl.partial").exists()
        destination.unlink()


def test_a_file_begun_with_other_settings_is_not_continued(tmp_path: Path) -> None:
    partial = tmp_path / "made.jsonl.partial"
    partial.write_text('{"made_with": {"target": "words"}}\n', encoding="utf-8")
    with pytest.raises(DataError, match=r"begun with .*words.* now it is .*letters"):
        run(tmp_path / "made.jsonl")
    assert partial.exists()


def test_a_finished_file_is_not_replaced(tmp_path: Path) -> None:
    run(tmp_path / "made.jsonl")
    with pytest.raises(DataError, match="already exists"):
        run(tmp_path / "made.jsonl")


def test_a_header_torn_in_two_begins_anew(tmp_path: Path, whole: list[bytes]) -> None:
    (tmp_path / "made.jsonl.partial").write_bytes(header()[:9])
    run(tmp_path / "made.jsonl")
    assert (tmp_path / "made.jsonl").read_bytes().split(b"\n")[:-1] == whole


def test_a_crash_keeps_the_batches_that_were_answered(tmp_path: Path, whole: list[bytes]) -> None:
    destination = tmp_path / "made.jsonl"

    def crash_at_d(name: str) -> bool:
        if name == "d":
            raise RuntimeError("killed")
        return True

    with pytest.raises(RuntimeError, match="killed"):
        run(destination, ends=crash_at_d)
    assert not destination.exists()
    asked: list[str] = []
    run(destination, asked)
    assert sorted(set(asked)) == ["c", "d", "e"]
    assert destination.read_bytes().split(b"\n")[:-1] == whole


def test_an_answer_without_its_end_token_is_marked_as_truncated(tmp_path: Path) -> None:
    made = run(tmp_path / "made.jsonl", ends=lambda name: name != "b")
    rows = [json.loads(line) for line in (tmp_path / "made.jsonl").read_text(encoding="utf-8").split("\n")[:-1]]
    assert [row["truncated"] for row in rows] == [False, True, False, False, False]
    assert made.num_truncated == 1


def test_two_conversations_of_one_id_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="'a' occurs twice"):
        regenerate(
            conversations(["a", "a"]),
            tmp_path / "made.jsonl",
            Letters(),
            lambda prompts, ids: [],
            eos_token_ids=frozenset([0]),
            batch_size=2,
            made_with=MADE_WITH,
        )
    assert not list(tmp_path.iterdir())


def test_turns_of_one_conversation_are_answered_under_different_names(tmp_path: Path) -> None:
    asked: list[str] = []

    def answer(prompts: Sequence[Sequence[int]], turns: Sequence[str]) -> list[list[int]]:
        asked.extend(turns)
        return [[65, 0] for _ in turns]

    settings = {"eos_token_ids": frozenset([0]), "batch_size": 2, "made_with": MADE_WITH}
    regenerate(conversations(["a"]), tmp_path / "made.jsonl", Letters(), answer, **settings)
    assert len(asked) == len(set(asked)) == 2


@pytest.mark.parametrize("turn", [{"role": "tool", "content": "4"}, {"role": "system", "content": "Be brief."}])
def test_conversations_that_cannot_be_answered_anew_are_refused(tmp_path: Path, turn: dict[str, Any]) -> None:
    row = Conversation("a", ({"role": "user", "content": "?"}, turn))
    settings = {"eos_token_ids": frozenset([0]), "batch_size": 2, "made_with": MADE_WITH}
    with pytest.raises(DataError, match=r"'a' (uses tools|has no user turn at its end)"):
        regenerate([row], tmp_path / "made.jsonl", Letters(), lambda prompts, ids: [], **settings)
