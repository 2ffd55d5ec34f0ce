"""Chats in the shapes that people keep them in become OpenAI-style messages, with text as their content.

OpenAI `messages` (role, content, tool_calls, reasoning under any of its names), ShareGPT `conversations` (from, value),
Alpaca's instruction and input, prompt and completion. What a message holds besides is kept, because templates read it;
what is null is dropped, because templates print it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from draftsmith.data.rejection import RowError

Message = dict[str, Any]

SHAREGPT_ROLES = {
    "system": "system",
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "assistant": "assistant",
    "model": "assistant",
    "bot": "assistant",
    "function_call": "assistant",
    "tool": "tool",
    "observation": "tool",
    "function_response": "tool",
}
CHATS = ("messages", "conversations", "conversation")
ANSWERS = ("output", "response", "completion", "answer")


def messages_of(row: dict[str, Any]) -> tuple[Message, ...]:
    """The chat that a row holds, in whichever shape. Raises RowError."""
    turns = next((row[key] for key in CHATS if row.get(key) is not None), None)
    if turns is not None:
        messages = tuple(_turns(turns))
    elif row.get("instruction") is not None:
        messages = tuple(_alpaca(row))
    elif row.get("prompt") is not None:
        messages = tuple(_prompted(row))
    else:
        keys = ", ".join(sorted(map(str, row))) or "none"
        raise RowError("neither `messages` nor `conversations`", f"keys: {keys}")
    _check_turns(messages)
    return messages


def tools_of(tools: Any) -> tuple[dict[str, Any], ...]:
    """Tool definitions as a list, or as the JSON text of one, which some data sets hold. Raises RowError."""
    if isinstance(tools, str):
        try:
            tools = json.loads(tools) if tools.strip() else None
        except json.JSONDecodeError as error:
            raise RowError("tools are not valid JSON", str(error)) from None
    if tools is None:
        return ()
    if not isinstance(tools, list):
        raise RowError("tools are not a list of objects", f"found {type(tools).__name__}")
    tools = [_parsed(tool) for tool in tools]
    if not all(isinstance(tool, dict) for tool in tools):
        raise RowError("tools are not a list of objects", "a tool is no object")
    return tuple(tools)


def _turns(turns: Any) -> Iterator[Message]:
    if isinstance(turns, dict) and turns and all(isinstance(column, list) for column in turns.values()):
        turns = [dict(zip(turns, values, strict=True)) for values in zip(*turns.values(), strict=True)]  # columns
    if not isinstance(turns, list) or not turns:
        raise RowError("no messages", "expected a list of at least one message")
    for position, turn in enumerate(turns):
        if not isinstance(turn, dict):
            raise RowError("a message is not an object", f"message {position} is {type(turn).__name__}")
        yield _message(turn, position)


def _alpaca(row: dict[str, Any]) -> Iterator[Message]:
    """The input is part of the question; a `history` of (question, answer) pairs comes before it."""
    if row.get("system"):
        yield {"role": "system", "content": _content(row["system"], 0)}
    for pair in row.get("history") or []:
        if not isinstance(pair, list) or len(pair) != 2:
            raise RowError("history is not a list of pairs", f"found {pair!r}")
        yield {"role": "user", "content": _content(pair[0], 0)}
        yield {"role": "assistant", "content": _content(pair[1], 0)}
    parts = [_content(row["instruction"], 0), _content(row.get("input"), 0)]
    yield {"role": "user", "content": "\n\n".join(part for part in parts if part.strip())}
    yield from _answer(row)


def _prompted(row: dict[str, Any]) -> Iterator[Message]:
    """Prompt and completion, each a text or already a list of messages."""
    prompt = row["prompt"]
    yield from _turns(prompt) if isinstance(prompt, list) else [{"role": "user", "content": _content(prompt, 0)}]
    yield from _answer(row)


def _answer(row: dict[str, Any]) -> Iterator[Message]:
    answer = next((row[key] for key in ANSWERS if row.get(key) is not None), None)
    if isinstance(answer, list):
        yield from _turns(answer)
    elif answer is not None:
        yield {"role": "assistant", "content": _content(answer, 1)}


def _message(turn: Message, position: int) -> Message:
    message = {key: value for key, value in turn.items() if value is not None}
    if "role" not in message:
        message = _from_sharegpt(message, position)
    if not isinstance(message["role"], str) or not message["role"]:
        raise RowError("a message has no role", f"message {position} has role {message['role']!r}")
    message["content"] = _content(message.get("content"), position)
    if message.get("function_call"):  # what tool_calls were called before
        message["tool_calls"] = [{"type": "function", "function": message.pop("function_call")}]
    if message.get("tool_calls"):
        message["tool_calls"] = [_tool_call(call, position) for call in _listed(message["tool_calls"], position)]
    return message


def _from_sharegpt(turn: Message, position: int) -> Message:
    if "from" not in turn:
        raise RowError("a message has no role", f"message {position} has keys {', '.join(sorted(turn)) or 'none'}")
    speaker, value = turn["from"], turn.get("value")
    if speaker not in SHAREGPT_ROLES:
        raise RowError("unknown speaker", f"message {position} is from {speaker!r}")
    extra = {key: value for key, value in turn.items() if key not in ("from", "value")}
    if speaker != "function_call":
        return {"role": SHAREGPT_ROLES[speaker], "content": value, **extra}
    calls = _parsed(value)
    calls = calls if isinstance(calls, list) else [calls]
    return {"role": "assistant", "tool_calls": [{"type": "function", "function": call} for call in calls], **extra}


def _listed(calls: Any, position: int) -> list[Any]:
    calls = _parsed(calls)
    if not isinstance(calls, list):
        raise RowError("tool calls are not a list", f"message {position} holds {type(calls).__name__}")
    return calls


def _tool_call(call: Any, position: int) -> Message:
    """OpenAI keeps arguments as JSON text; templates write them as JSON themselves, so text would be quoted twice."""
    if isinstance(call, dict) and "function" not in call and isinstance(call.get("name"), str):
        call = {"type": "function", "function": call}
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise RowError("a tool call has no function", f"message {position}")
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except json.JSONDecodeError as error:
            raise RowError("tool call arguments are not valid JSON", f"message {position}: {error}") from None
    return {**call, "function": {**function, "arguments": {} if arguments is None else arguments}}


def _parsed(value: Any) -> Any:
    """JSON text as what it says, anything else as it is."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except json.JSONDecodeError:
        return value


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


def _check_turns(messages: tuple[Message, ...]) -> None:
    for position, message in enumerate(messages):
        empty = not message["content"].strip() and not message.get("tool_calls")
        if empty and message["role"] in ("user", "assistant"):
            raise RowError("empty content", f"message {position} ({message['role']}) says nothing")
