"""Answers written by the target itself: every assistant turn of every conversation, and an account of every row.

Who answers is given from outside: this process in batches (`in_batches`), or a server (data/chat_server.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from draftsmith.data.answers import AnswerFile, Asked, with_keys
from draftsmith.data.rejection import Rejected, Rejection, RowError, joined
from draftsmith.data.template import TEMPLATE_ERRORS
from draftsmith.errors import DataError
from draftsmith.records import Conversation

Answer = Callable[[Sequence[Sequence[int]], Sequence[str]], list[list[int]]]
"""Prompts as token ids, and a name for each (conversation/turn) -> answers as token ids, the end token included."""

SAME_FAILURES = 8  # rows refused at the beginning, and none answered: it is not the rows
SPOKEN = {"system", "developer", "user", "assistant"}


@dataclass(frozen=True)
class Answered:
    """What became of one row: all its messages with the new answers, or why it could not be answered."""

    asked: Asked
    messages: tuple[dict[str, Any], ...] = ()
    truncated: bool = False
    num_tokens: int = 0
    refused: Rejection | None = None


AnswerAll = Callable[[Sequence[Asked]], Iterable[Answered]]
"""Every row once, in any order."""


@dataclass(frozen=True)
class Regenerated:
    """Conversations answered now and before, cut at the limit; tokens written now; rows left out, by reason.

    rows read == num_written + num_reused + the sum of the counts in `left_out`.
    """

    num_written: int
    num_reused: int
    num_truncated: int
    num_tokens: int
    left_out: dict[str, Rejected] = field(default_factory=dict)


def regenerate(
    rows: Iterable[tuple[int, Conversation | Rejection]],
    destination: Path,
    answer_all: AnswerAll,
    *,
    made_with: Mapping[str, Any],
    strict: bool = False,
    progress: Callable[[int, int, int], None] | None = None,
) -> Regenerated:
    """Write `destination` (JSONL, one conversation a line, `truncated` true where an answer met the limit).

    Every finished row is kept at once; the same call goes on where an interrupted one stopped, see AnswerFile.
    `progress` gets rows answered now, rows to answer now, and tokens written. Raises DataError if nothing can be
    answered, the file cannot be written, and, when strict, at the first row that cannot be answered.
    """
    left_out = _LeftOut(strict)
    asked = with_keys(list(_answerable(rows, left_out)))
    num_written = num_tokens = 0
    with AnswerFile(destination, dict(made_with)) as file:
        todo = [row for row in asked if row.key not in file]
        for row in answer_all(todo):
            if row.refused is not None:
                left_out.add(row.refused)
                if num_written == 0 and left_out.num_refused >= SAME_FAILURES:
                    raise DataError(f"none of the first {SAME_FAILURES} rows can be answered: {row.refused}")
                continue
            file.add(row.asked.key, {"messages": list(row.messages), "truncated": row.truncated})
            num_written, num_tokens = num_written + 1, num_tokens + row.num_tokens
            if progress is not None:
                progress(num_written, len(todo), num_tokens)
        num_reused = sum(row.key in file for row in asked) - num_written
        if num_written + num_reused == 0:
            raise DataError(f"no row can be answered: {'; '.join(left_out.lines()) or 'there are none'}")
        num_truncated = file.finish(asked, left_out.to_json())
    return Regenerated(num_written, num_reused, num_truncated, num_tokens, left_out.rows)


class _LeftOut:
    """Rows that are not answered, by reason. num_refused counts those that whoever answers has refused."""

    def __init__(self, strict: bool) -> None:
        self.rows: dict[str, Rejected] = {}
        self.num_refused = 0
        self._strict = strict

    def add(self, rejection: Rejection, *, unasked: bool = False) -> None:
        if self._strict:
            raise DataError(f"{rejection}; repair the row, or go on without strict to count and skip it")
        self.rows = joined(self.rows, {rejection.reason: Rejected(1, (rejection,))})
        self.num_refused += not unasked

    def lines(self) -> list[str]:
        return [f"{rows.count:,} x {reason} (first: {rows.first})" for reason, rows in self.rows.items()]

    def to_json(self) -> list[dict[str, Any]]:
        return [rows.to_json() for rows in self.rows.values()]


def _answerable(
    rows: Iterable[tuple[int, Conversation | Rejection]], left_out: _LeftOut
) -> Iterator[tuple[int, Conversation]]:
    for line, row in rows:
        rejection = row if isinstance(row, Rejection) else _why_not(line, row)
        if rejection is not None:
            left_out.add(rejection, unasked=True)
        elif isinstance(row, Conversation):
            yield line, row


def _why_not(line: int, conversation: Conversation) -> Rejection | None:
    roles = [message["role"] for message in conversation.messages]
    spoken = [role for role in roles if role != "assistant"]
    if not spoken or spoken[-1] != "user":
        return Rejection(line, "no user turn at its end to answer", f"conversation {conversation.id!r}")
    if conversation.tools or set(roles) - SPOKEN:
        detail = f"conversation {conversation.id!r}: results belong to calls that would be answered anew"
        return Rejection(line, "uses tools", detail)
    return None


@dataclass
class Dialogue:
    """A row while it is answered: what was said so far, and what is still to be asked."""

    asked: Asked
    written: list[dict[str, Any]] = field(default_factory=list)
    turns: list[dict[str, Any]] = field(default_factory=list)
    truncated: bool = False
    num_tokens: int = 0

    @classmethod
    def begin(cls, asked: Asked) -> Dialogue:
        return cls(asked, turns=asked.turns)

    @property
    def is_over(self) -> bool:
        return not self.turns

    @property
    def turn(self) -> str:
        """The name of the answer that is due, for draws: it depends on what is asked and nothing else."""
        return f"{self.asked.key}/{len(self.written)}"

    def ask(self) -> list[dict[str, Any]]:
        """Say everything up to the next user turn; returns all messages."""
        while self.turns:
            self.written.append(self.turns.pop(0))
            if self.written[-1]["role"] == "user":
                break
        return self.written

    def refuse(self, reason: str, detail: str) -> Answered:
        return Answered(self.asked, refused=Rejection(self.asked.line, reason, detail))

    def end(self) -> Answered:
        return Answered(self.asked, tuple(self.written), self.truncated, self.num_tokens)


def in_batches(
    tokenizer: Any,
    answer: Answer,
    *,
    eos_token_ids: frozenset[int],
    batch_size: int,
    max_prompt: int | None = None,
    template_kwargs: Mapping[str, Any] | None = None,
) -> AnswerAll:
    """Answers made here, by conversations of similar length together. Prompts above `max_prompt` tokens are refused."""

    def prompt(dialogue: Dialogue) -> list[int]:
        """Raises RowError."""
        try:
            ids = tokenizer.apply_chat_template(
                list(dialogue.ask()), add_generation_prompt=True, return_dict=False, **(template_kwargs or {})
            )
        except TEMPLATE_ERRORS as error:
            raise RowError("the chat template refuses the row", f"{type(error).__name__}: {error}") from None
        if max_prompt is not None and len(ids) > max_prompt:
            raise RowError("longer than the target's context", f"{len(ids)} tokens before the answer")
        return list(ids)

    def turn(dialogues: list[Dialogue]) -> Iterator[Answered]:
        """One more answer for all of them, together; yields those that are over."""
        prompts: list[tuple[Dialogue, list[int]]] = []
        for dialogue in dialogues:
            try:
                prompts.append((dialogue, prompt(dialogue)))
            except RowError as error:
                dialogue.turns.clear()
                yield dialogue.refuse(error.reason, error.detail)
        answers = answer([ids for _, ids in prompts], [dialogue.turn for dialogue, _ in prompts]) if prompts else []
        for (dialogue, _), ids in zip(prompts, answers, strict=True):
            ended = bool(ids) and ids[-1] in eos_token_ids
            content = tokenizer.decode(ids[:-1] if ended else ids, skip_special_tokens=True)
            dialogue.written.append({"role": "assistant", "content": content})
            dialogue.truncated |= not ended
            dialogue.num_tokens += len(ids)
            if not content.strip():
                dialogue.turns.clear()
                yield dialogue.refuse("an empty answer", f"conversation {dialogue.asked.conversation.id!r}")
            elif dialogue.is_over:
                yield dialogue.end()

    def answer_all(todo: Sequence[Asked]) -> Iterator[Answered]:
        todo = sorted(todo, key=lambda row: sum(len(message["content"]) for message in row.turns))
        for start in range(0, len(todo), batch_size):
            waiting = [Dialogue.begin(row) for row in todo[start : start + batch_size]]
            while waiting:
                yield from turn(waiting)
                waiting = [dialogue for dialogue in waiting if not dialogue.is_over]

    return answer_all
