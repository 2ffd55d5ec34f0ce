"""One row, as bytes of JSON or as an object that a reader made of it, becomes what it says, or why it says nothing.

A row is a chat (see `messages`), a `text` that the template has rendered already, or `input_ids` with their mask:
`loss_mask`, `assistant_masks`, or `labels` that are -100 where nothing is supervised.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

import numpy as np

from draftsmith.data.messages import CHATS, messages_of, tools_of
from draftsmith.data.rejection import Rejection, RowError
from draftsmith.records import Conversation, Pretokenized, RenderedText

RawRow = bytes | dict[str, Any]
Entry = Conversation | RenderedText | Pretokenized
MASKS = ("loss_mask", "assistant_masks", "labels")
IGNORED_LABEL = -100
LARGEST_ID = 2**31 - 1  # ids are kept as int32


def read_row(raw: RawRow, line: int, *, namespace: str = "") -> Entry | Rejection:
    """What the row says, or why it cannot be used; whatever it holds, no row ends the rest.

    `namespace` comes before ids that the row brings, which may occur in other sources too.
    """
    try:
        return parse_row(raw, namespace=namespace)
    except RowError as error:
        return Rejection(line, error.reason, error.detail)
    except UnicodeEncodeError as error:
        return Rejection(line, "not UTF-8", f"half of a surrogate pair at character {error.start}")
    except (TypeError, ValueError, OverflowError, RecursionError) as error:  # JSON can hold what no chat ever holds
        return Rejection(line, "not a conversation", f"{type(error).__name__}: {error}")


def parse_row(raw: RawRow, *, namespace: str = "") -> Entry:
    """Raises RowError; TypeError, ValueError or RecursionError where the row is no conversation in any way."""
    row = _parsed(raw) if isinstance(raw, bytes) else raw
    if not isinstance(row, dict):
        raise RowError("not a JSON object", f"found {type(row).__name__}")
    own = _own_id(row, namespace)
    truncated = row.get("truncated") is True or row.get("finish_reason") == "length"
    if row.get("input_ids") is not None:
        return _tokenized(row, own, truncated)
    chat = any(row.get(key) is not None for key in (*CHATS, "instruction", "prompt"))
    if not chat and isinstance(row.get("text"), str):
        return _rendered(row["text"], own, truncated)
    messages, tools = messages_of(row), tools_of(row.get("tools"))
    name = own or content_id(messages, tools)
    if not isinstance(raw, bytes) or b"\\u" in raw:  # half of a surrogate pair is no text, and only so it gets in
        json.dumps([name, *messages, *tools], ensure_ascii=False).encode("utf-8")
    return Conversation(id=name, messages=messages, tools=tools, truncated=truncated)


def content_id(messages: tuple[dict[str, Any], ...], tools: tuple[dict[str, Any], ...] = ()) -> str:
    """16 hexadecimal digits that depend on the messages and tools, and on nothing else."""
    return _content_hash({"messages": list(messages), "tools": list(tools)} if tools else list(messages))


def _parsed(text: bytes) -> Any:
    try:
        return json.loads(text.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise RowError("not UTF-8", f"byte {error.start} is 0x{text[error.start]:02x}") from None
    except (json.JSONDecodeError, RecursionError) as error:
        raise RowError("not valid JSON", str(error)) from None


def _rendered(text: str, own_id: str | None, truncated: bool) -> RenderedText:
    if not text.strip():
        raise RowError("empty content", "the text says nothing")
    text.encode("utf-8")
    return RenderedText(own_id or _content_hash(text), text, truncated)


def _tokenized(row: dict[str, Any], own_id: str | None, truncated: bool) -> Pretokenized:
    name = next((key for key in MASKS if row.get(key) is not None), None)
    if name is None:
        raise RowError("input_ids without a mask", f"expected one of {', '.join(MASKS)}")
    ids, mask = _whole_numbers(row["input_ids"], "input_ids"), _whole_numbers(row[name], name)
    if len(ids) != len(mask):
        raise RowError("input_ids and mask differ in length", f"{len(ids)} ids, {len(mask)} in {name}")
    if len(ids) and not 0 <= ids.min() <= ids.max() <= LARGEST_ID:
        raise RowError("ids out of range", f"found {ids.min() if ids.min() < 0 else ids.max()}")
    wanted = mask != IGNORED_LABEL if name == "labels" else mask != 0
    if name == "labels" and not np.array_equal(mask[wanted], ids[wanted]):
        raise RowError("labels are not the ids they stand at", "labels must not be shifted: label i is input id i")
    if name != "labels" and not np.isin(mask, (0, 1)).all():
        raise RowError("a mask holds more than 0 and 1", name)
    sample_id = own_id or _content_hash([ids.tolist(), wanted.astype(int).tolist()])
    return Pretokenized(sample_id, ids.astype(np.int32), wanted, truncated)


def _whole_numbers(values: Any, name: str) -> Any:
    """int64 [T]. Raises RowError for anything but a flat list of whole numbers (or of true and false)."""
    array = np.asarray(values)
    if array.ndim != 1 or array.dtype.kind not in "iub":
        raise RowError("not a list of whole numbers", f"{name} holds {array.dtype} {list(array.shape)}")
    return array.astype(np.int64)


def _content_hash(known: Any) -> str:
    canonical = json.dumps(known, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode("ascii")).hexdigest()[:16]


def _own_id(row: dict[str, Any], namespace: str) -> str | None:
    own = row.get("id")
    if isinstance(own, int) and not isinstance(own, bool):
        return f"{namespace}{own}"
    if not isinstance(own, str) or not own.strip():
        return None
    own.encode("utf-8")
    return namespace + own
