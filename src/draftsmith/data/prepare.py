"""Conversations in, token store out, batch by batch; every row is kept or counted with the reason why not.

Batches are cut by the rows alone, encoded by any number of processes and written in their order: the store is the same
whoever does the work, and the same again after a kill.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from draftsmith.data.accounting import Accounting
from draftsmith.data.encode import EncodedRows, Encoder
from draftsmith.data.mixture import PlacedRow, StoppingStrategy, placed_rows
from draftsmith.data.readers import num_bytes
from draftsmith.data.source import Source, as_sources, names_of
from draftsmith.data.store import TokenStore
from draftsmith.data.template import ChatTemplate
from draftsmith.data.writer import StoreWriter, existing_store
from draftsmith.errors import DataError, DraftsmithError, StageError
from draftsmith.flow import Pipeline, process_workers
from draftsmith.records import Conversation

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

CODE_VERSION = 2  # raise it when the same rows would give other tokens or another mask
BATCH_ROWS = 256
BATCH_BYTES = 1 << 20
CHECKPOINT_BATCHES = 64
WORTH_A_PROCESS_BYTES = 16 << 20  # below, starting processes takes longer than the work
Truncated = Literal["exclude", "cut"]
Rows = Path | Source | Sequence[Source] | Sequence[Conversation]


def prepare(
    source: Rows,
    destination: Path,
    tokenizer: PreTrainedTokenizerBase,
    *,
    max_length: int,
    holdout: float,
    truncated: Truncated = "exclude",
    limit: int | None = None,
    strict: bool = False,
    template_kwargs: Mapping[str, Any] | None = None,
    text_markers: tuple[str, str] | None = None,
    seed: int = 0,
    stopping_strategy: StoppingStrategy = "first_exhausted",
    num_workers: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> TokenStore:
    """Tokenise `source`, a file, sources, or conversations with answers, into a store at `destination`.

    Answers that were cut at a limit are excluded, or with truncated="cut" used without their closing token. `limit`
    reads only the first rows. `seed` decides the order of sources that are mixed by weight, `stopping_strategy` what
    happens where one of them has no more rows (see data/mixture.py). `progress` is called with the rows read and the
    tokens written so far. A store that was made from exactly the same is reused; an interrupted one is gone on with.
    Raises DataError if a source is missing or empty, if another store stands there, if somebody else is preparing it,
    if no row is usable, and, when strict, at the first row that is not; ModelError if the tokenizer cannot be used.
    Failing leaves nothing behind.
    """
    template = ChatTemplate(tokenizer, template_kwargs, text_markers=text_markers)
    rows = _InMemory(source) if _is_conversations(source) else _OnDisk(as_sources(source), seed, stopping_strategy)  # type: ignore[arg-type]
    made_from = {
        "code_version": CODE_VERSION,
        "holdout": holdout,
        "limit": limit,
        "max_length": max_length,
        "rows_sha256": rows.sha256(),
        "sources": rows.described(),
        "template_kwargs": dict(template_kwargs or {}),
        "template_sha256": template.template_sha256,
        "text_markers": list(text_markers) if text_markers else None,
        "tokenizer_sha256": template.tokenizer_sha256,
        "truncated": truncated,
        "vocab_size": len(tokenizer),
    }
    existing = existing_store(destination, made_from)
    if existing is not None:
        return existing
    encoder = Encoder(template, max_length, truncated == "exclude", rows.names)
    with StoreWriter(destination, made_from) as writer:
        existing = existing_store(destination, made_from)  # somebody may have finished while we looked
        if existing is not None:
            return existing
        todo = islice(rows.placed(limit), writer.accounting.num_read, None)
        with _encoded(_batches(todo), encoder, num_workers if rows.worth_processes() else 1) as batches:
            _fill(writer, batches, rows.title, strict=strict, progress=progress)
        if writer.accounting.num_kept == 0:
            raise DataError(_nothing_kept(rows.title, writer.accounting))
        return writer.commit(tokenizer_name=tokenizer.name_or_path or "")


def _fill(
    writer: StoreWriter,
    batches: Iterable[EncodedRows],
    title: str,
    *,
    strict: bool,
    progress: Callable[[int, int], None] | None,
) -> None:
    num_tokens = 0
    for number, batch in enumerate(batches, start=1):
        if strict and batch.first_rejection is not None:
            place = "" if batch.first_rejection.source else f"{title}, "
            raise DataError(
                f"{place}{batch.first_rejection}; repair the row, or prepare without strict to count and skip it"
            )
        writer.append(batch)
        if number % CHECKPOINT_BATCHES == 0:
            writer.checkpoint()
        num_tokens += len(batch.input_ids)
        if progress is not None:
            progress(writer.accounting.num_read, num_tokens)


@contextmanager
def _encoded(batches: Iterator[list[PlacedRow]], encoder: Encoder, num_workers: int) -> Iterator[Iterable[EncodedRows]]:
    """Encoded batches in order: by this process, or by others while this one reads and writes."""
    if num_workers == 1:
        yield map(encoder, batches)
        return
    # One thread each: they are as many as there are cores, and none of them computes with torch.
    environment = {"TOKENIZERS_PARALLELISM": "false", "USE_TORCH": "0", "OMP_NUM_THREADS": "1"}
    try:
        with (
            process_workers(encoder, num_workers, environment=environment) as workers,
            Pipeline("prepare") as pipeline,
        ):
            yield pipeline.stage("tokenise", workers, pipeline.source("read", batches))
    except StageError as error:
        if isinstance(error.__cause__, DraftsmithError):
            raise error.__cause__ from None
        raise


def _batches(rows: Iterable[PlacedRow]) -> Iterator[list[PlacedRow]]:
    """Cut where 256 rows or a mebibyte are reached, whichever is sooner; one row may be longer."""
    batch: list[PlacedRow] = []
    size = 0
    for row in rows:
        batch.append(row)
        size += row.num_bytes
        if len(batch) == BATCH_ROWS or size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _is_conversations(source: Rows) -> bool:
    return not isinstance(source, Path | str | Source) and not any(isinstance(each, Source) for each in source)


class _OnDisk:
    """Rows of sources."""

    def __init__(self, sources: tuple[Source, ...], seed: int, stopping_strategy: StoppingStrategy) -> None:
        self._sources = sources
        self._seed = seed
        self._stopping_strategy = stopping_strategy
        self.names = names_of(sources)
        self.title = ", ".join(source.path for source in sources)

    def sha256(self) -> str:
        return _joined([source.sha256() for source in self._sources])

    def described(self) -> Any:
        weights = [source.weight for source in self._sources]
        if weights[0] is None:
            return {"names": list(self.names), "weights": weights, "seed": None}
        repeat = {} if self._stopping_strategy == "first_exhausted" else {"stopping_strategy": self._stopping_strategy}
        return {"names": list(self.names), "weights": weights, "seed": self._seed, **repeat}

    def worth_processes(self) -> bool:
        sizes = [num_bytes(source) for source in self._sources]
        return None in sizes or sum(size or 0 for size in sizes) >= WORTH_A_PROCESS_BYTES

    def placed(self, limit: int | None) -> Iterator[PlacedRow]:
        return placed_rows(self._sources, seed=self._seed, stopping_strategy=self._stopping_strategy, limit=limit)


class _InMemory:
    """Conversations that are there already."""

    names = ("",)
    title = "the conversations"

    def __init__(self, conversations: Sequence[Conversation]) -> None:
        if not conversations:
            raise DataError("there are no conversations to prepare")
        self._conversations = conversations

    def sha256(self) -> str:
        known = ([row.id, row.messages, row.tools, row.truncated] for row in self._conversations)
        return _joined([json.dumps(row, sort_keys=True) for row in known])

    def described(self) -> Any:
        return None

    def worth_processes(self) -> bool:
        return False

    def placed(self, limit: int | None) -> Iterator[PlacedRow]:
        return islice((PlacedRow(0, line, row) for line, row in enumerate(self._conversations, start=1)), limit)


def _joined(parts: Iterable[str]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.encode() + b"\n")
    return digest.hexdigest()


def _nothing_kept(name: str, accounting: Accounting) -> str:
    worst = sorted(accounting.rejected.items(), key=lambda item: (-item[1].count, item[0]))[:3]
    reasons = [f"{rejected.count} x {reason} (first: {rejected.first})" for reason, rejected in worst]
    return f"{name}: none of {accounting.num_read} rows can be used: {'; '.join(reasons)}"
