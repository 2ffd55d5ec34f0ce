"""Rows of a JSONL file become conversations, or rejections that say which line and why; no row disappears.

A row holds `messages` (OpenAI style: role, content) or `conversations` (ShareGPT: from, value), and may hold `id` and
`tools`. Files ending in .gz are decompressed on the way.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from draftsmith.errors import DataError
from draftsmith.records import Conversation

SHAREGPT_ROLES = {
    "system": "system",
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "assistant": "assistant",
    "model": "assistant",
    "bot": "assistant",
    "tool": "tool",
    "observation": "tool",
}


@dataclass(frozen=True)
class Rejection:
    """A row that cannot be used. `reason` is one of few, to be counted; `detail` is about this row."""

    line: int
    reason: str
    detail: str = ""

    def __str__(self) -> str:
        return f"line {self.line}: {self.reason}" + (f": {self.detail}" if self.detail else "")


class RowError(Exception):
    """Why one row is unusable; becomes a `Rejection` where the line is known."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason, detail)
        self.reason = reason
        self.detail = detail


def read_conversations(path: Path, *, strict: bool = False) -> Iterator[tuple[int, Conversation | Rejection]]:
    """Yield (line number, conversation or rejection) for every line that is not blank, in order of the file.

    Raises DataError if the file is missing, unreadable or without rows, and, when strict, at the first broken row.
    """
    num_rows = 0
    for line, text in _numbered_lines(path):
        if not text.strip():
            continue
        num_rows += 1
        try:
            row: Conversation | Rejection = parse_row(text)
        except RowError as error:
            row = Rejection(line, error.reason, error.detail)
        except (TypeError, ValueError, RecursionError) as error:  # JSON can hold what no chat ever holds
            row = Rejection(line, "not a conversation", f"{type(error).__name__}: {error}")
        if strict and isinstance(row, Rejection):
            raise DataError(f"{path}, {row}; repair the row, or read without strict to count and skip it")
        yield line, row
    if num_rows == 0:
        raise DataError(f"{path} holds no rows; expected one JSON object per line with `messages` or `conversations`")


def parse_row(text: bytes) -> Conversation:
    """One line of JSON as a conversation. Raises RowError."""
    try:
        row = json.loads(text.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise RowError("not UTF-8", f"byte {error.start} is 0x{text[error.start]:02x}") from None
    except (json.JSONDecodeError, RecursionError) as error:
        raise RowError("not valid JSON", str(error)) from None
    if not isinstance(row, dict):
        raise RowError("not a JSON object", f"found {type(row).__name__}")
    messages = tuple(_messages(row))
    _check_turns(messages)
    tools = _tools(row.get("tools"))
    name = _row_id(row, messages, tools)
    json.dumps([name, *messages, *tools], ensure_ascii=False).encode("utf-8")  # half of a surrogate pair is no text
    return Conversation(id=name, messages=messages, tools=tools, truncated=row.get("truncated") is True)


def content_id(messages: tuple[dict[str, Any], ...], tools: tuple[dict[str, Any], ...] = ()) -> str:
    """16 hexadecimal digits that depend on the messages and tools, and on nothing else."""
    known = {"messages": list(messages), "tools": list(tools)} if tools else list(messages)
    canonical = json.dumps(known, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode("ascii")).hexdigest()[:16]


def _numbered_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    try:
        with _open(path) as file:
            yield from enumerate(file, start=1)
    except FileNotFoundError:
        raise DataError(f"{path} does not exist; give a JSONL file of conversations") from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"{path} is not a whole gzip file: {error}; compress it again") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error


def _open(path: Path) -> gzip.GzipFile | IO[bytes]:
    return gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb")


def _messages(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
    turns = row.get("messages", row.get("conversations"))
    if turns is None:
        raise RowError("neither `messages` nor `conversations`", f"keys: {', '.join(sorted(row)) or 'none'}")
    if not isinstance(turns, list) or not turns:
        raise RowError("no messages", "expected a list of at least one message")
    for position, turn in enumerate(turns):
        if not isinstance(turn, dict):
            raise RowError("a message is not an object", f"message {position} is {type(turn).__name__}")
        yield _message(turn, position)


def _message(turn: dict[str, Any], position: int) -> dict[str, Any]:
    if "role" in turn:
        message = dict(turn)
    elif "from" in turn:
        extra = {key: value for key, value in turn.items() if key not in ("from", "value")}
        message = {"role": turn["from"], "content": turn.get("value"), **extra}
    else:
        raise RowError("a message has no role", f"message {position} has keys {', '.join(sorted(turn)) or 'none'}")
    if "from" in turn and message["role"] not in SHAREGPT_ROLES:
        raise RowError("unknown speaker", f"message {position} is from {message['role']!r}")
    if not isinstance(message["role"], str) or not message["role"]:
        raise RowError("a message has no role", f"message {position} has role {message['role']!r}")
    if "from" in turn:
        message["role"] = SHAREGPT_ROLES[message["role"]]
    message["content"] = _content(message.get("content"), position)
    if message.get("tool_calls"):
        message["tool_calls"] = [_tool_call(call, position) for call in _listed(message["tool_calls"], position)]
    return message


def _listed(calls: Any, position: int) -> list[Any]:
    if not isinstance(calls, list):
        raise RowError("tool calls are not a list", f"message {position} holds {type(calls).__name__}")
    return calls


def _tool_call(call: Any, position: int) -> dict[str, Any]:
    """OpenAI keeps arguments as JSON text; templates write them as JSON themselves, so text would be quoted twice."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        raise RowError("a tool call has no function", f"message {position}")
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except json.JSONDecodeError as error:
            raise RowError("tool call arguments are not valid JSON", f"message {position}: {error}") from None
    return {**call, "function": {**function, "arguments": arguments}}


def _content(content: Any, position: int) -> str:
    """Text as it is; a list of text parts joined, because templates differ in whether they accept lists."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise RowError("content is not text", f"message {position} holds {type(content).__name__}")
    texts = []
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else type(part).__name__
        if kind != "text" or not isinstance(part.get("text"), str):
            raise RowError("content is not text", f"message {position} holds a part of type {kind!r}")
        texts.append(part["text"])
    return "".join(texts)


def _check_turns(messages: tuple[dict[str, Any], ...]) -> None:
    for position, message in enumerate(messages):
        empty = not message["content"].strip() and not message.get("tool_calls")
        if empty and message["role"] in ("user", "assistant"):
            raise RowError("empty content", f"message {position} ({message['role']}) says nothing")


def _tools(tools: Any) -> tuple[dict[str, Any], ...]:
    """Tool definitions as a list, or as the JSON text of one, which some data sets hold."""
    if isinstance(tools, str):
        try:
            tools = json.loads(tools) if tools.strip() else None
        except json.JSONDecodeError as error:
            raise RowError("tools are not valid JSON", str(error)) from None
    if tools is None:
        return ()
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise RowError("tools are not a list of objects", f"found {type(tools).__name__}")
    return tuple(tools)


def _row_id(row: dict[str, Any], messages: tuple[dict[str, Any], ...], tools: tuple[dict[str, Any], ...]) -> str:
    own = row.get("id")
    if isinstance(own, int) and not isinstance(own, bool):
        return str(own)
    return own if isinstance(own, str) and own.strip() else content_id(messages, tools)
