"""Conversations in, token store out, one row at a time; every row is kept or counted with the reason why not."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from draftsmith.data.readers import Rejection, RowError, read_conversations
from draftsmith.data.store import Accounting, TokenStore
from draftsmith.data.template import ChatTemplate, num_anchors
from draftsmith.data.writer import StoreWriter, existing_store
from draftsmith.errors import DataError
from draftsmith.records import Conversation, TokenizedSample

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

CODE_VERSION = 1  # raise it when the same rows would give other tokens or another mask
Row = tuple[int, Conversation | Rejection]
Truncated = Literal["exclude", "cut"]


def prepare(
    source: Path | Sequence[Conversation],
    destination: Path,
    tokenizer: PreTrainedTokenizerBase,
    *,
    max_length: int,
    holdout: float,
    truncated: Truncated = "exclude",
    limit: int | None = None,
    strict: bool = False,
    template_kwargs: Mapping[str, Any] | None = None,
    progress: Callable[[int], None] | None = None,
) -> TokenStore:
    """Tokenise `source`, a JSONL file or conversations with answers, into a store at `destination`.

    Answers that were cut at a limit are excluded, or with truncated="cut" used without their closing token. `limit`
    reads only the first rows. A store that was made from exactly the same is reused. `progress` is called with the
    number of rows read so far. Raises DataError if the source is missing or empty, if another store stands there, if
    no row is usable, and, when strict, at the first row that is not; ModelError if the tokenizer cannot be used.
    Failing leaves nothing behind.
    """
    template = ChatTemplate(tokenizer, template_kwargs)
    made_from = {
        "code_version": CODE_VERSION,
        "holdout": holdout,
        "limit": limit,
        "max_length": max_length,
        "rows_sha256": _rows_sha256(source),
        "template_kwargs": dict(template_kwargs or {}),
        "truncated": truncated,
        "template_sha256": template.template_sha256,
        "tokenizer_sha256": template.tokenizer_sha256,
        "vocab_size": len(tokenizer),
    }
    existing = existing_store(destination, made_from)
    if existing is not None:
        return existing
    rows = read_conversations(source, strict=strict) if isinstance(source, Path) else _numbered(source)
    rows = islice(rows, limit)
    name = str(source) if isinstance(source, Path) else "the conversations"
    with StoreWriter(destination) as writer:
        accounting = _fill(
            writer,
            template,
            _without_truncated(rows) if truncated == "exclude" else rows,
            name=name,
            max_length=max_length,
            strict=strict,
            progress=progress,
        )
        if accounting.num_kept == 0:
            raise DataError(_nothing_kept(name, accounting))
        return writer.commit(made_from, accounting)


def _fill(
    writer: StoreWriter,
    template: ChatTemplate,
    rows: Iterable[Row],
    *,
    name: str,
    max_length: int,
    strict: bool,
    progress: Callable[[int], None] | None,
) -> Accounting:
    num_read = num_kept = num_truncated = 0
    rejected: dict[str, tuple[int, Rejection]] = {}
    for num_read, (line, row) in enumerate(rows, start=1):
        kept: list[TokenizedSample] | Rejection
        kept = row if isinstance(row, Rejection) else _samples(template, row, max_length, line)
        if isinstance(kept, Rejection):
            if strict:
                raise DataError(f"{name}, {kept}; repair the row, or prepare without strict to count and skip it")
            count, first = rejected.get(kept.reason, (0, kept))
            rejected[kept.reason] = (count + 1, first)
        else:
            num_kept += 1
            num_truncated += sum(len(sample.input_ids) > max_length for sample in kept)
            for sample in kept:
                writer.add(_cut(sample, max_length))
        if progress is not None:
            progress(num_read)
    return Accounting(num_read, num_kept, num_truncated, rejected)


def _samples(
    template: ChatTemplate, conversation: Conversation, max_length: int, line: int
) -> list[TokenizedSample] | Rejection:
    """Samples, still whole, that have a place to train a block before max_length; or why there is none."""
    try:
        samples = template.tokenize(conversation)
    except RowError as error:
        return Rejection(line, error.reason, error.detail)
    kept = [sample for sample in samples if num_anchors(sample.loss_mask[:max_length])]
    if kept:
        return kept
    if any(num_anchors(sample.loss_mask) for sample in samples):
        first = min(int(sample.loss_mask.argmax()) for sample in samples)
        reason = f"no supervised token left after truncation at {max_length}"
        return Rejection(line, reason, f"supervision starts at token {first}")
    return Rejection(line, "fewer than two supervised tokens in a row", "a block needs two")


def _cut(sample: TokenizedSample, max_length: int) -> TokenizedSample:
    return TokenizedSample(sample.id, sample.input_ids[:max_length], sample.loss_mask[:max_length])


def _without_truncated(rows: Iterable[Row]) -> Iterator[Row]:
    for line, row in rows:
        if isinstance(row, Conversation) and row.truncated:
            row = Rejection(line, "an answer was cut at a limit", "data.truncated=cut would use it without its end")
        yield line, row


def _numbered(conversations: Sequence[Conversation]) -> Iterator[Row]:
    if not conversations:
        raise DataError("there are no conversations to prepare")
    yield from enumerate(conversations, start=1)


def _rows_sha256(source: Path | Sequence[Conversation]) -> str:
    """Of the file's bytes, or of the conversations' content."""
    digest = hashlib.sha256()
    if not isinstance(source, Path):
        for row in source:
            known = [row.id, row.messages, row.tools, row.truncated]
            digest.update(json.dumps(known, sort_keys=True).encode() + b"\n")
        return digest.hexdigest()
    try:
        with source.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        raise DataError(f"{source} does not exist; give a JSONL file of conversations") from None
    except OSError as error:
        raise DataError(f"{source} cannot be read: {error.strerror}") from error


def _nothing_kept(name: str, accounting: Accounting) -> str:
    worst = sorted(accounting.rejected.items(), key=lambda item: (-item[1][0], item[0]))[:3]
    reasons = [f"{count} x {reason} (first: line {first.line}: {first.detail})" for reason, (count, first) in worst]
    return f"{name}: none of {accounting.num_read} rows can be used: {'; '.join(reasons)}"
