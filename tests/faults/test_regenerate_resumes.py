"""An interrupted `regenerate` goes on where it stopped: no row twice, none lost, whatever is left of the last line."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from draftsmith.data import Regenerated, in_batches, regenerate
from draftsmith.errors import DataError
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
    again = {"role": "user", "content": "and?"}
    return [
        Conversation(name, ({"role": "user", "content": f"{name}?"}, {"role": "assistant", "content": "old"}, again))
        for name in names
    ]


HEADER = json.dumps({"made_with": MADE_WITH}).encode()


def run(
    destination: Path,
    asked: list[str] | None = None,
    ends: Callable[[str], bool] = lambda name: True,
    rows: Sequence[Conversation] | None = None,
) -> Regenerated:
    """Answers every question with its first letter; `asked` collects these."""

    def answer(prompts: Sequence[Sequence[int]], turns: Sequence[str]) -> list[list[int]]:
        names = [chr(prompt[0]) for prompt in prompts]
        if asked is not None:
            asked.extend(names)
        return [[*map(ord, ANSWER + name), *([0] if ends(name) else [])] for name in names]

    numbered = list(enumerate(conversations() if rows is None else rows, start=1))
    return regenerate(numbered, destination, batched(answer), made_with=MADE_WITH)


def batched(answer: Any, **settings: Any) -> Any:
    return in_batches(Letters(), answer, eos_token_ids=frozenset([0]), batch_size=2, **settings)


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]


@pytest.fixture
def whole(tmp_path: Path) -> list[bytes]:
    """The lines of a run that nothing interrupted."""
    run(tmp_path / "whole.jsonl")
    return (tmp_path / "whole.jsonl").read_bytes().split(b"\n")[:-1]


def test_every_assistant_turn_is_written_anew_in_the_order_of_the_input(whole: list[bytes]) -> None:
    """Only the first user turn was kept: https://github.com/NVIDIA/Model-Optimizer/pull/1680"""
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
        (tmp_path / "made.jsonl.partial").write_bytes(b"\n".join([HEADER, *whole[:2], torn[:left]]))
        asked: list[str] = []
        made = run(destination, asked)
        assert destination.read_bytes().split(b"\n")[:-1] == whole
        assert sorted(set(asked)) == ["c", "d", "e"]  # a line without its end is made again
        assert (made.num_written, made.num_reused, made.num_truncated) == (3, 2, 0)
        assert not (tmp_path / "made.jsonl.partial").exists()
        destination.unlink()


def test_a_file_begun_with_other_settings_is_not_continued(tmp_path: Path) -> None:
    """A fresh regeneration mixed with older answers: https://github.com/NVIDIA-NeMo/Automodel/pull/2477"""
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
    (tmp_path / "made.jsonl.partial").write_bytes(HEADER[:9])
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


def test_rows_that_were_moved_added_or_taken_out_keep_the_answers_of_the_others(tmp_path: Path) -> None:
    """Resumed runs redid or skipped wrong rows, known by index: https://github.com/vllm-project/speculators/issues/584"""
    destination = tmp_path / "made.jsonl"

    def crash_at_e(name: str) -> bool:
        if name == "e":
            raise RuntimeError("killed")
        return True

    with pytest.raises(RuntimeError, match="killed"):
        run(destination, ends=crash_at_e)
    asked: list[str] = []
    others = [Conversation("renamed", row.messages) for row in conversations(["d", "new", "b", "a"])]
    made = run(destination, asked, rows=others)
    assert sorted(set(asked)) == ["n"]
    assert (made.num_written, made.num_reused) == (1, 3)
    rows = lines_of(destination)
    assert [row["messages"][0]["content"] for row in rows] == ["d?", "new?", "b?", "a?"]
    assert {row["id"] for row in rows} == {"renamed"}
    assert all(row["messages"][1]["content"] == ANSWER + row["messages"][0]["content"][0] for row in rows)


def test_who_asks_the_same_is_answered_as_often_and_under_names_of_its_own(tmp_path: Path) -> None:
    turns: list[str] = []

    def answer(prompts: Sequence[Sequence[int]], names: Sequence[str]) -> list[list[int]]:
        turns.extend(names)
        return [[65, 0] for _ in names]

    rows = list(enumerate(conversations(["a", "b", "a"]), start=1))
    made = regenerate(rows, tmp_path / "made.jsonl", batched(answer), made_with=MADE_WITH)
    assert made.num_written == len(lines_of(tmp_path / "made.jsonl")) == 3
    assert len(set(turns)) == len(turns) == 6
    again: list[str] = []
    turns, again = again, turns
    regenerate(rows[::-1], tmp_path / "again.jsonl", batched(answer), made_with=MADE_WITH)
    assert sorted(turns) == sorted(again)


def test_a_line_that_cannot_be_read_is_named(tmp_path: Path, whole: list[bytes]) -> None:
    (tmp_path / "made.jsonl.partial").write_bytes(b"\n".join([HEADER, whole[0], b"{broken", whole[1], b""]))
    with pytest.raises(DataError, match=r"made.jsonl.partial, line 3, cannot be read"):
        run(tmp_path / "made.jsonl")


def test_what_answers_were_made_with_stands_beside_them(tmp_path: Path, whole: list[bytes]) -> None:
    known = json.loads((tmp_path / "whole.jsonl.meta.json").read_text(encoding="utf-8"))
    assert known == {"made_with": MADE_WITH, "num_rows": 5, "num_truncated": 0, "left_out": []}


def test_a_second_process_is_refused_while_the_first_one_writes(tmp_path: Path) -> None:
    destination = tmp_path / "made.jsonl"

    def answer(prompts: Sequence[Sequence[int]], turns: Sequence[str]) -> list[list[int]]:
        with pytest.raises(DataError, match="another process is writing"):
            run(destination)
        return [[65, 0] for _ in turns]

    rows = list(enumerate(conversations(["a"]), start=1))
    assert regenerate(rows, destination, batched(answer), made_with=MADE_WITH).num_written == 1


@pytest.mark.parametrize("turn", [{"role": "tool", "content": "4"}, {"role": "system", "content": "Be brief."}])
def test_conversations_that_cannot_be_answered_anew_are_counted_and_with_strict_refused(
    tmp_path: Path, turn: dict[str, Any]
) -> None:
    row = Conversation("odd", ({"role": "user", "content": "?"}, turn))
    made = run(tmp_path / "made.jsonl", rows=[*conversations(), row])
    (left_out,) = made.left_out.values()
    assert (left_out.count, left_out.first.line, made.num_written) == (1, 6, 5)
    rows = [(1, row)]
    with pytest.raises(DataError, match=r"line 1: (uses tools|no user turn at its end)"):
        regenerate(rows, tmp_path / "strict.jsonl", batched(None), made_with=MADE_WITH, strict=True)
    with pytest.raises(DataError, match="no row can be answered: 1 x"):
        regenerate(rows, tmp_path / "none.jsonl", batched(None), made_with=MADE_WITH)


def test_prompts_that_leave_no_room_for_an_answer_are_counted(tmp_path: Path) -> None:
    rows = [*conversations(["a"]), Conversation("long", ({"role": "user", "content": "x" * 500},))]

    def answer(prompts: Sequence[Sequence[int]], turns: Sequence[str]) -> list[list[int]]:
        assert max(map(len, prompts)) <= 100
        return [[65, 0] for _ in turns]

    numbered = list(enumerate(rows, start=1))
    made = regenerate(numbered, tmp_path / "made.jsonl", batched(answer, max_prompt=100), made_with=MADE_WITH)
    assert {reason: rows.count for reason, rows in made.left_out.items()} == {"longer than the target's context": 1}


def test_an_empty_answer_is_counted_and_not_written(tmp_path: Path) -> None:
    rows = list(enumerate(conversations(["a", "b"]), start=1))

    def answer(prompts: Sequence[Sequence[int]], turns: Sequence[str]) -> list[list[int]]:
        return [[0] if chr(prompt[0]) == "a" else [65, 0] for prompt in prompts]

    made = regenerate(rows, tmp_path / "made.jsonl", batched(answer), made_with=MADE_WITH)
    assert (made.num_written, list(made.left_out)) == (1, ["an empty answer"])
    assert [row["id"] for row in lines_of(tmp_path / "made.jsonl")] == ["b"]
