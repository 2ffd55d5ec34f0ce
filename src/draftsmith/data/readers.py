"""Rows of whatever people have, in order and numbered from 1, in bounded memory; what a row says is told by `rows`.

*.jsonl, *.json     one JSON object a line, or one array of objects; plain, gzip or zstd
*.parquet           through `datasets`
a directory         what `Dataset.save_to_disk` wrote, or such files in it, in order of their names
hub:org/name        a data set of the hub, through `datasets` and its cache
"""

from __future__ import annotations

import codecs
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2

from draftsmith.data.compressed import open_decompressed, optional, readable
from draftsmith.data.rejection import Rejection, RowError
from draftsmith.data.rows import RawRow, content_id, parse_row, read_row
from draftsmith.data.source import HUB, Source, hub_commit, kind_of, short
from draftsmith.errors import DataError
from draftsmith.records import Conversation

__all__ = ["Rejection", "RowError", "content_id", "num_bytes", "parse_row", "raw_rows", "read_conversations"]

CHUNK_CHARS = 1 << 20
BATCH_ROWS = 128
BLANK = " \t\r\n"


def read_conversations(path: Path | Source, *, strict: bool = False) -> Iterator[tuple[int, Conversation | Rejection]]:
    """Yield (line number, conversation or rejection) for every row of a source, in order.

    Raises DataError if the source is missing, unreadable or without rows, and, when strict, at the first broken row.
    """
    source = path if isinstance(path, Source) else Source(str(path))
    for line, raw in raw_rows(source):
        row = read_row(raw, line)
        if not isinstance(row, Conversation | Rejection):
            row = Rejection(line, "no messages to answer", "the row holds rendered text or token ids")
        if strict and isinstance(row, Rejection):
            raise DataError(f"{source.path}, {row}; repair the row, or read without strict to count and skip it")
        yield line, row


def raw_rows(source: Source) -> Iterator[tuple[int, RawRow]]:
    """Yield (number, row) of every row that is not blank. Raises DataError naming the source, also if it has none."""
    num_rows = 0
    for line, raw in _rows(source):
        num_rows += 1
        yield line, raw
    if num_rows == 0:
        raise DataError(f"{source.path} holds no rows; expected one JSON object per line with `messages`")


def num_bytes(source: Source) -> int | None:
    """Bytes on disk, or None where that is not known before reading."""
    return None if source.on_hub else sum(file.stat().st_size for file in source.files())


def _rows(source: Source) -> Iterator[tuple[int, RawRow]]:
    if source.on_hub or source.saved_to_disk:
        yield from enumerate(_saved_rows(source), start=1)
        return
    before = 0
    for file in source.files():
        line = 0
        with readable(str(file)):
            for line, raw in _file_rows(file):
                yield before + line, raw
        before += line


def _file_rows(path: Path) -> Iterator[tuple[int, RawRow]]:
    if path.suffix == ".parquet":
        yield from enumerate(_parquet_rows(path), start=1)
        return
    with open_decompressed(path) as file:
        if file.peek(3).startswith(codecs.BOM_UTF8):
            file.read(len(codecs.BOM_UTF8))
        if kind_of(path) == ".json" and file.peek(64).lstrip().startswith(b"["):
            yield from enumerate(_array_items(file, path), start=1)
            return
        for line, text in enumerate(file, start=1):
            if text.strip():
                yield line, text


def _array_items(file: io.BufferedReader, path: Path) -> Iterator[Any]:
    """Items of a JSON array, one after another, however long it is. What is not one whole array is an error."""
    text, decoder = codecs.getreader("utf-8")(file, "surrogateescape"), json.JSONDecoder()
    buffer, size, number, line = text.read(CHUNK_CHARS), CHUNK_CHARS, 0, 1
    place, delimiter = buffer.index("[") + 1, "["

    def broken(at: int, why: str) -> DataError:
        where = f"item {number + 1}, line {line + buffer.count(chr(10), 0, at)}"
        return DataError(f"{path} is no whole JSON array: {where}: {why}; repair it")

    while delimiter != "]":
        place = _after_blanks(buffer, place)
        if delimiter == "[" and buffer[place : place + 1] == "]":
            place += 1
            break
        try:
            item, stop = decoder.raw_decode(buffer, place)
            stop = _after_blanks(buffer, stop)
            if stop == len(buffer):
                raise json.JSONDecodeError("it ends after this item", buffer, stop)  # so far
        except RecursionError:
            raise broken(place, "nested too deeply") from None
        except json.JSONDecodeError as error:
            more = text.read(size)
            if not more:
                raise broken(error.pos, error.msg) from None
            line += buffer.count("\n", 0, place)
            buffer, place, size = buffer[place:] + more, 0, size * 2  # a long item is not tried once a chunk
            continue
        delimiter = buffer[stop]
        if delimiter not in ",]":
            raise broken(stop, f"followed by {delimiter!r}, where a comma or the end of the array belongs")
        yield item
        place, size, number = stop + 1, CHUNK_CHARS, number + 1
    rest = (buffer[place:] + text.read(CHUNK_CHARS)).strip(BLANK)
    if rest:
        raise DataError(f"{path} goes on after its array, with {rest[:20]!r}; make it one array, or JSONL")


def _after_blanks(text: str, place: int) -> int:
    while place < len(text) and text[place] in BLANK:
        place += 1
    return place


def _parquet_rows(path: Path) -> Iterator[dict[str, Any]]:
    datasets = optional("datasets", f"{path} is a Parquet file")
    try:
        rows = datasets.load_dataset("parquet", data_files=str(path.absolute()), split="train", streaming=True)
        for row in rows:
            yield _without_nulls(row)
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        raise DataError(f"{path} cannot be read as Parquet: {short(error)}; write it again") from None


def _saved_rows(source: Source) -> Iterator[dict[str, Any]]:
    datasets = optional("datasets", f"{source.path} is a data set")
    try:
        found = _hub_dataset(datasets, source) if source.on_hub else datasets.load_from_disk(source.path)
    except (
        OSError,
        ValueError,
        RuntimeError,
        KeyError,
        httpx2.HTTPError,
        datasets.exceptions.DatasetsError,
    ) as error:
        raise DataError(
            f"{source.path} cannot be read as a data set: {short(error)}; check its name and split"
        ) from None
    if isinstance(found, dict):
        split = source.split or "train"
        if split not in found:
            raise DataError(f"{source.path} has no split {split!r}; it has {', '.join(found)}: add ?split=NAME")
        found = found[split]
    for batch in found.iter(batch_size=BATCH_ROWS):
        for place in range(len(next(iter(batch.values())))):
            yield _without_nulls({name: column[place] for name, column in batch.items()})


def _hub_dataset(datasets: Any, source: Source) -> Any:
    """Downloaded once into the cache of `datasets` and mapped from there; no code of the data set is ever run."""
    name = source.path.removeprefix(HUB)
    return datasets.load_dataset(name, source.subset, split=source.split or "train", revision=hub_commit(source))


def _without_nulls(value: Any) -> Any:
    """Arrow gives every object all keys that any object of the column has, null where it has none itself."""
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value
