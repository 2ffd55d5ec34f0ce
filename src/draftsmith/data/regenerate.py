"""Answers written by the target itself: every assistant turn of every conversation, in batches of similar length.

The output is appended while it is made, so an interrupted run goes on where it stopped; rows are known by their id,
never by their place. At the end the file is rewritten in the order of the input.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

from draftsmith.errors import DataError
from draftsmith.files import atomic_write, short_hash
from draftsmith.records import Conversation

Answer = Callable[[Sequence[Sequence[int]], Sequence[str]], list[list[int]]]
"""Prompts as token ids, and a name for each (conversation/turn) -> answers as token ids, the end token included."""


@dataclass(frozen=True)
class Regenerated:
    """What a call did: conversations written now and before, answers cut at the limit, tokens written now."""

    num_written: int
    num_reused: int
    num_truncated: int
    num_tokens: int


def regenerate(
    conversations: Sequence[Conversation],
    destination: Path,
    tokenizer: Any,
    answer: Answer,
    *,
    eos_token_ids: frozenset[int],
    batch_size: int,
    made_with: dict[str, Any],
    template_kwargs: Mapping[str, Any] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Regenerated:
    """Write `destination` (JSONL, one conversation a line, `truncated` true where an answer met the limit).

    `made_with` names everything that decides what an answer says, such as target and temperature: an interrupted file
    goes on only under the same.
    Raises DataError if an id occurs twice, a conversation has no user turn to answer, or the file cannot be written.
    """
    _check(conversations)
    if destination.exists():
        raise DataError(f"{destination} already exists; choose another file, or remove it to have it written again")
    prompts = [[conversation.id, conversation.messages] for conversation in conversations]
    made_with = {**made_with, "template": dict(template_kwargs or {}), "prompts": short_hash(prompts)}
    template = partial(_prompt, tokenizer, dict(template_kwargs or {}))
    partial_path = destination.with_name(destination.name + ".partial")
    done = _read_partial(partial_path, made_with)
    todo = [conversation for conversation in conversations if conversation.id not in done]
    todo.sort(key=lambda conversation: sum(len(str(m["content"])) for m in conversation.messages))
    num_tokens = 0
    try:
        destination.parent.mkdir(parents=True, exist_ok=True)
        with partial_path.open("a", encoding="utf-8") as file:
            _lock(file, destination)
            if file.tell() == 0:
                file.write(json.dumps({"made_with": made_with}) + "\n")
            for start in range(0, len(todo), batch_size):
                batch = todo[start : start + batch_size]
                for row, tokens in _answer_batch(batch, template, tokenizer, answer, eos_token_ids):
                    done[row["id"]] = row
                    num_tokens += tokens
                    file.write(json.dumps(row, ensure_ascii=False) + "\n")
                file.flush()
                if progress:
                    progress(min(start + batch_size, len(todo)), num_tokens)
        rows = [done[conversation.id] for conversation in conversations]
        atomic_write(destination, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
        partial_path.unlink()
    except OSError as error:
        why = error.strerror or error
        raise DataError(f"{destination} cannot be written: {why}; what was answered before is kept") from error
    return Regenerated(
        num_written=len(todo),
        num_reused=len(rows) - len(todo),
        num_truncated=sum(row["truncated"] for row in rows),
        num_tokens=num_tokens,
    )


def _lock(file: IO[str], destination: Path) -> None:
    """Two processes would write the same answers twice."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise DataError(f"another process is writing {destination}; wait for it, or choose another file") from None


def _check(conversations: Sequence[Conversation]) -> None:
    seen: set[str] = set()
    for conversation in conversations:
        if conversation.id in seen:
            raise DataError(f"conversation id {conversation.id!r} occurs twice; ids must be unique to resume safely")
        seen.add(conversation.id)
        roles = [message["role"] for message in conversation.messages]
        asked = [role for role in roles if role != "assistant"]
        if not asked or asked[-1] != "user":
            raise DataError(f"conversation {conversation.id!r} has no user turn at its end to answer")
        if conversation.tools or set(roles) - {"system", "developer", "user", "assistant"}:
            raise DataError(
                f"conversation {conversation.id!r} uses tools, whose results belong to calls that would be "
                "answered anew, so it cannot be regenerated; remove it from the file"
            )


def _read_partial(path: Path, made_with: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Rows that an interrupted run left, by id. The first line says what they were made with."""
    if not path.exists():
        return {}
    # Bytes: a kill may tear a line inside a character, and answers may hold line ends of Unicode that end no row.
    whole, newline, torn = path.read_bytes().rpartition(b"\n")
    if torn:  # that row is made again
        atomic_write(path, (whole + newline).decode())
    first, *rows = map(json.loads, whole.split(b"\n")) if whole else ({},)
    if first and first != {"made_with": made_with}:
        raise DataError(
            f"{path} was begun with {first.get('made_with')}, now it is {made_with}; give the same settings to go on, "
            "or delete it to begin anew"
        )
    return {row["id"]: row for row in rows}


def _answer_batch(
    batch: Sequence[Conversation],
    template: Callable[[Sequence[dict[str, Any]]], list[int]],
    tokenizer: Any,
    answer: Answer,
    eos_token_ids: frozenset[int],
) -> Iterator[tuple[dict[str, Any], int]]:
    """Turn by turn: all conversations that have a k-th user turn are answered together."""
    asked = [[m for m in c.messages if m["role"] != "assistant"] for c in batch]
    written: list[list[dict[str, Any]]] = [[] for _ in batch]
    truncated, tokens = [False] * len(batch), [0] * len(batch)
    while waiting := [i for i, turns in enumerate(asked) if turns]:
        for i in waiting:
            while asked[i] and (not written[i] or written[i][-1]["role"] != "user"):
                written[i].append(asked[i].pop(0))
        prompts = [template(written[i]) for i in waiting]
        for i, ids in zip(waiting, answer(prompts, [f"{batch[i].id}/{len(written[i])}" for i in waiting]), strict=True):
            ended = bool(ids) and ids[-1] in eos_token_ids
            truncated[i] |= not ended
            tokens[i] += len(ids)
            content = tokenizer.decode(ids[:-1] if ended else ids, skip_special_tokens=True)
            written[i].append({"role": "assistant", "content": content})
    for i, conversation in enumerate(batch):
        yield {"id": conversation.id, "messages": written[i], "truncated": truncated[i]}, tokens[i]


def _prompt(tokenizer: Any, template_kwargs: dict[str, Any], messages: Sequence[dict[str, Any]]) -> list[int]:
    return list(
        tokenizer.apply_chat_template(list(messages), add_generation_prompt=True, return_dict=False, **template_kwargs)
    )
