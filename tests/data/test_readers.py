"""Rows become conversations or counted rejections; the file's mistakes are named with their line."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from draftsmith.data.readers import Rejection, RowError, content_id, parse_row, read_conversations
from draftsmith.errors import DataError
from draftsmith.records import Conversation

USER = {"role": "user", "content": "Hi"}
ANSWER = {"role": "assistant", "content": "Hello."}


def parse(row: Any) -> Conversation:
    return parse_row(json.dumps(row).encode())


def reason(row: Any) -> str:
    with pytest.raises(RowError) as caught:
        parse(row)
    return str(caught.value.reason)


def test_openai_and_sharegpt_rows_of_one_chat_are_the_same_conversation() -> None:
    openai = parse({"messages": [{"role": "system", "content": "S"}, USER, ANSWER]})
    turns = [("system", "S"), ("human", "Hi"), ("gpt", "Hello.")]
    sharegpt = parse({"conversations": [{"from": who, "value": text} for who, text in turns]})
    assert openai == sharegpt


def test_the_rows_own_id_is_kept_and_otherwise_made_from_the_content() -> None:
    assert parse({"id": "a-1", "messages": [USER]}).id == "a-1"
    assert parse({"id": 17, "messages": [USER]}).id == "17"
    made = {parse({**extra, "messages": [USER]}).id for extra in ({}, {"id": ""}, {"id": None}, {"other": 1})}
    assert made == {content_id((USER,))}
    assert len(made.pop()) == 16
    assert parse({"messages": [{"content": "Hi", "role": "user"}]}).id == content_id((USER,))
    assert parse({"messages": [ANSWER]}).id != content_id((USER,))


def test_content_given_as_text_parts_is_joined() -> None:
    parts = [{"type": "text", "text": "H"}, {"type": "text", "text": "i"}]
    assert parse({"messages": [{"role": "user", "content": parts}]}).messages == (USER,)


def test_tools_may_be_a_list_or_the_json_text_of_one() -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    assert parse({"messages": [USER], "tools": tools}).tools == tuple(tools)
    assert parse({"messages": [USER], "tools": json.dumps(tools)}).tools == tuple(tools)
    assert parse({"messages": [USER], "tools": None}).tools == ()


def test_arguments_of_tool_calls_given_as_json_text_become_objects() -> None:
    call = {"type": "function", "function": {"name": "f", "arguments": '{"city": "Oslo"}'}}
    message = parse({"messages": [{"role": "assistant", "content": None, "tool_calls": [call]}]}).messages[0]
    assert message["tool_calls"][0]["function"]["arguments"] == {"city": "Oslo"}
    assert message["content"] == ""


def test_other_fields_of_a_message_are_kept() -> None:
    message = {**ANSWER, "reasoning_content": "R"}
    assert parse({"messages": [USER, message]}).messages[1] == message


REJECTED = {
    "not a JSON object": [1],
    "neither `messages` nor `conversations`": {"question": "Hi"},
    "no messages": {"messages": []},
    "a message is not an object": {"messages": ["Hi"]},
    "a message has no role": {"messages": [{"content": "Hi"}]},
    "unknown speaker": {"conversations": [{"from": "martian", "value": "Hi"}]},
    "empty content": {"messages": [USER, {"role": "assistant", "content": " \n"}]},
    "content is not text": {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
    "tools are not valid JSON": {"messages": [USER], "tools": "[{"},
    "tools are not a list of objects": {"messages": [USER], "tools": {"name": "f"}},
    "tool calls are not a list": {"messages": [{**ANSWER, "tool_calls": {"name": "f"}}]},
    "a tool call has no function": {"messages": [{**ANSWER, "tool_calls": ["f"]}]},
    "tool call arguments are not valid JSON": {
        "messages": [{**ANSWER, "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}]
    },
}


@pytest.mark.parametrize("expected", REJECTED)
def test_a_row_that_cannot_be_used_says_why(expected: str) -> None:
    assert reason(REJECTED[expected]) == expected


def test_an_image_is_refused_by_its_name() -> None:
    with pytest.raises(RowError, match="image_url"):
        parse(REJECTED["content is not text"])


def test_broken_json_in_line_7_of_10_is_one_rejection_and_nine_conversations(tmp_path: Path) -> None:
    lines = [json.dumps({"id": i, "messages": [USER, ANSWER]}) for i in range(1, 11)]
    lines[6] = lines[6][:-5]
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(lines), encoding="utf-8")
    rows = list(read_conversations(path))
    rejections = [row for _, row in rows if isinstance(row, Rejection)]
    assert [(rejection.line, rejection.reason) for rejection in rejections] == [(7, "not valid JSON")]
    assert [row.id for _, row in rows if isinstance(row, Conversation)] == [str(i) for i in range(1, 11) if i != 7]
    with pytest.raises(DataError, match=r"rows\.jsonl, line 7: not valid JSON"):
        list(read_conversations(path, strict=True))


def test_bytes_that_are_not_utf_8_are_named(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"messages": []}\n{"messages": "\xff"}\n')
    [_, (_, rejection)] = read_conversations(path)
    assert str(rejection) == "line 2: not UTF-8: byte 14 is 0xff"


def test_gzip_files_are_read_as_plain_ones(tmp_path: Path) -> None:
    row = json.dumps({"messages": [USER, ANSWER]}).encode() + b"\n"
    (tmp_path / "rows.jsonl").write_bytes(row)
    (tmp_path / "rows.jsonl.gz").write_bytes(gzip.compress(row))
    assert list(read_conversations(tmp_path / "rows.jsonl")) == list(read_conversations(tmp_path / "rows.jsonl.gz"))


def test_a_gzip_file_that_ends_early_is_an_error_that_names_it(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl.gz"
    path.write_bytes(gzip.compress(json.dumps({"messages": [USER] * 50}).encode())[:-12])
    with pytest.raises(DataError, match=r"rows\.jsonl\.gz is not a whole gzip file"):
        list(read_conversations(path))


@pytest.mark.parametrize("text", ["", "\n \n"])
def test_a_file_without_rows_is_an_error_that_names_it(tmp_path: Path, text: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=r"rows\.jsonl holds no rows"):
        list(read_conversations(path))


def test_a_missing_file_and_a_directory_are_errors_that_name_them(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none\.jsonl does not exist"):
        list(read_conversations(tmp_path / "none.jsonl"))
    with pytest.raises(DataError, match="cannot be read"):
        list(read_conversations(tmp_path))
