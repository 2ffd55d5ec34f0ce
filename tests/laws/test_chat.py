"""Chat shows the target's own answer, piece by piece, and tells apart what was drafted from what was not."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from draftsmith.drafter import Drafter
from draftsmith.errors import DataError
from draftsmith.evaluation import Rule, chat_prompt, speculate
from draftsmith.run import chatting
from draftsmith.run.chatting import ACCEPTED, OWN, Chat, Painter, Pieces, converse
from draftsmith.target import Target
from helpers import QUESTION_OF_CHAT, StubDrafter, draftsmith


class Recorder(Painter):
    """Keeps pieces with where they came from, and notes."""

    def __init__(self) -> None:
        super().__init__(Console(file=io.StringIO()))
        self.pieces: list[tuple[str, bool]] = []
        self.notes: list[str] = []

    def piece(self, text: str, *, accepted: bool) -> None:
        self.pieces.append((text, accepted))

    def end(self, note: str) -> None:
        self.notes.append(note)

    def note(self, text: str) -> None:
        self.notes.append(text)

    @property
    def text(self) -> str:
        return "".join(text for text, _ in self.pieces)


@pytest.fixture
def session(target: Target, trained: Drafter, tokenizer: Any) -> Chat:
    return Chat(target, trained, tokenizer, Recorder(), Rule(), max_new_tokens=24, template={})


def recorder(session: Chat) -> Recorder:
    assert isinstance(session.painter, Recorder)
    return session.painter


def prompt_of(session: Chat, *turns: str) -> list[int]:
    roles = ("user", "assistant") * len(turns)
    messages = [{"role": role, "content": turn} for role, turn in zip(roles, turns, strict=False)]
    return chat_prompt(session.tokenizer, messages)


def test_what_is_shown_is_the_answer_and_accepted_tokens_are_told_apart(session: Chat) -> None:
    (expected,) = speculate(session.drafter, session.target, [prompt_of(session, QUESTION_OF_CHAT)], max_new_tokens=24)
    session.ask(QUESTION_OF_CHAT)
    shown = recorder(session)
    assert shown.text == session.tokenizer.decode(expected.tokens, skip_special_tokens=True)
    drafted = [accepted for text, accepted in shown.pieces if text]
    flags = [False]  # the prompt's forward
    for count in expected.committed:
        flags += [True] * (count - 1) + [False]
    assert drafted == flags[: len(drafted)]
    length = sum(expected.committed) / len(expected.committed)
    assert (
        f"{len(expected.tokens)} tokens, {length:.2f} for each of {len(expected.committed)} forwards" in shown.notes[-1]
    )


@pytest.mark.parametrize("agrees", [True, False])
def test_a_drafter_that_is_always_or_never_right_gives_the_same_answer_in_other_colours(
    agrees: bool, session: Chat
) -> None:
    prompt = prompt_of(session, QUESTION_OF_CHAT)
    (expected,) = speculate(session.drafter, session.target, [prompt], max_new_tokens=24)
    session.drafter = StubDrafter(session.target, session.drafter.shape, [prompt], [expected.tokens], lambda _: agrees)  # type: ignore[assignment]
    session.ask(QUESTION_OF_CHAT)
    assert recorder(session).text == session.tokenizer.decode(expected.tokens, skip_special_tokens=True)
    assert any(accepted for _, accepted in recorder(session).pieces) == agrees


def test_a_second_question_is_asked_after_the_first_answer_and_new_forgets_both(session: Chat) -> None:
    session.ask("Say bread.")
    first = recorder(session).text
    recorder(session).pieces.clear()
    session.ask("Again.")
    expected = prompt_of(session, "Say bread.", first, "Again.")
    (answer,) = speculate(session.drafter, session.target, [expected], max_new_tokens=24)
    assert recorder(session).text == session.tokenizer.decode(answer.tokens, skip_special_tokens=True)
    assert session.total.num_tokens > len(answer.tokens)
    converse(session, asker("/new", "/exit", "never asked"))
    assert session.messages == []


def asker(*lines: str) -> Any:
    left: Iterator[str] = iter(lines)

    def ask() -> str:
        line = next(left, None)
        if line is None:
            raise EOFError
        if line == "<Ctrl-C>":
            raise KeyboardInterrupt
        return line

    return ask


def test_ctrl_c_stops_an_answer_and_the_conversation_goes_on(session: Chat, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = recorder(session)
    keep = shown.piece

    def piece(text: str, *, accepted: bool) -> None:
        keep(text, accepted=accepted)
        if len(shown.pieces) == 5:
            raise KeyboardInterrupt

    monkeypatch.setattr(shown, "piece", piece)
    session.ask("Say bread.")
    assert shown.notes[-1].startswith("stopped; ")
    assert session.messages[-1]["role"] == "assistant"
    session.ask("Again.")
    assert len(session.messages) == 4


def test_ctrl_c_at_the_prompt_explains_how_to_leave_and_the_end_of_input_leaves(session: Chat) -> None:
    converse(session, asker("<Ctrl-C>", "", "   "))
    assert recorder(session).notes == [f"\n{chatting.HELP}"]
    assert session.messages == []


def test_a_question_beyond_the_targets_length_is_named_and_changes_nothing(session: Chat) -> None:
    converse(session, asker("x" * 3000, "Say bread."))
    assert "beyond the 2048 that tiny-random was made for" in recorder(session).notes[0]
    assert session.messages[0]["content"] == "Say bread."


def test_an_answer_is_cut_where_the_targets_length_ends(session: Chat) -> None:
    session.max_new_tokens = 500
    room = 20
    question = "x" * (2048 - room - len(prompt_of(session, "")))
    session.ask(question)
    assert session.total.num_tokens <= room
    assert recorder(session).text


class ByteTokenizer:
    def decode(self, tokens: list[int], skip_special_tokens: bool) -> str:
        return bytes(tokens).decode("utf-8", errors="replace")


def test_a_character_is_shown_once_all_its_bytes_are_there() -> None:
    pieces = Pieces(ByteTokenizer())
    text = "aé€😀b"
    assert [pieces.add(byte) for byte in text.encode()] == ["a", "", "é", "", "", "€", "", "", "", "😀", "b"]
    assert pieces.add("é".encode()[0]) == ""
    assert pieces.rest() == "\ufffd"


class StrippingTokenizer:
    """Drops the space before the first word, as SentencePiece does."""

    words = ("▁one", "▁two", "ish")

    def decode(self, tokens: list[int], skip_special_tokens: bool) -> str:
        return "".join(self.words[token] for token in tokens).replace("▁", " ").removeprefix(" ")


def test_spaces_between_words_survive_tokenizers_that_strip_the_first() -> None:
    pieces = Pieces(StrippingTokenizer())
    assert "".join(pieces.add(token) for token in (0, 1, 2, 0)) == "one twoish one"


def paint(console: Console) -> str:
    painter = Painter(console)
    painter.piece("ab", accepted=True)
    painter.piece("[c]\n", accepted=True)
    painter.piece("d", accepted=False)
    painter.piece("", accepted=False)
    painter.piece("e", accepted=True)
    painter.end("2 tokens")
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_in_a_terminal_accepted_pieces_have_a_colour_of_their_own() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, color_system="standard", record=True, width=40)
    shown = paint(console)
    assert console.export_text() == "ab[c]\nde\n2 tokens\n"
    styles = {ACCEPTED: "\x1b[1;32mab", OWN: "\x1b[33md"}
    assert all(mark in shown for mark in styles.values())


def test_elsewhere_accepted_pieces_stand_between_marks() -> None:
    assert paint(Console(file=io.StringIO(), width=40)) == "‹ab[c]\n›d‹e›\n2 tokens\n"


@pytest.mark.parametrize("limit", [("--max-new-tokens", "12"), ("eval.max_new_tokens=12",)], ids=" ".join)
def test_one_question_from_the_command_line_is_answered_and_nothing_else(
    limit: tuple[str, ...], finished_run: Path
) -> None:
    done = draftsmith("chat", finished_run, "--prompt", "Say bread.", *limit)
    assert done.code == 0, done.err
    assert "12 tokens, " in done.out
    assert "cut at 12 tokens" in done.out
    assert "you>" not in done.out


def test_questions_from_a_pipe_are_answered_one_after_the_other(
    finished_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("Say bread.\n\nAgain.\n/exit\nnever asked\n"))
    done = draftsmith("chat", finished_run, "eval.temperature=0.7", "--max-new-tokens", "6")
    assert done.code == 0, done.err
    assert "you> Again." in done.out
    assert "never asked" not in done.out
    assert "in all: 12 tokens" in done.out


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--prompt", ""), "the question is empty"),
        (("train.lr=1",), "only eval.*, device and num_threads can be set"),
        (("--prompt", "x" * 3000), "beyond the 2048"),
        (("--template", "nonsense"), "does not read as"),
    ],
)
def test_what_cannot_be_asked_is_explained(arguments: tuple[str, ...], named: str, finished_run: Path) -> None:
    done = draftsmith("chat", finished_run, *arguments)
    assert done.code == 2
    assert named in done.err


def test_an_empty_question_is_refused(session: Chat) -> None:
    with pytest.raises(DataError, match="the question is empty"):
        session.ask("  ")
