"""A batch of rows becomes samples and an account of the rows. Depends on nothing but the rows, wherever it runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from draftsmith.data.accounting import Accounting, Share
from draftsmith.data.mixture import PlacedRow
from draftsmith.data.rejection import Rejected, Rejection, RowError, joined
from draftsmith.data.rows import Entry, read_row
from draftsmith.data.template import ChatTemplate, num_anchors
from draftsmith.records import Conversation, Pretokenized, TokenizedSample

SPLIT = "history is rewritten, so one sample for each time that the server saw it"
LEFT_OUT = "left out to keep the weights"
AGAIN = "read again to keep the weights"
UNUSABLE_AGAIN = "read again to keep the weights, and no more usable than before"
Outcome = tuple[TokenizedSample, ...] | RowError


@dataclass(frozen=True)
class EncodedRows:
    """Samples of a batch of rows, one after another. input_ids: int32, loss_mask: uint8, lengths: of each sample.

    `first_rejection` is in order of the rows.
    """

    input_ids: npt.NDArray[np.int32]
    loss_mask: npt.NDArray[np.uint8]
    lengths: tuple[int, ...]
    ids: tuple[str, ...]
    accounting: Accounting
    first_rejection: Rejection | None


@dataclass(frozen=True)
class Encoder:
    """A function of a batch of rows, small enough to be sent to another process.

    `sources` are the names of the sources. With `exclude_truncated`, answers that were cut at a limit are rejected.
    """

    template: ChatTemplate
    max_length: int
    exclude_truncated: bool
    sources: tuple[str, ...]

    def __call__(self, rows: Sequence[PlacedRow]) -> EncodedRows:
        entries = [self._entry(row) for row in rows]
        outcomes = self._outcomes(entries)
        samples: list[TokenizedSample] = []
        account, first = _Account(self.sources), None
        for row, entry, outcome in zip(rows, entries, outcomes, strict=True):
            if isinstance(outcome, RowError):
                name = self.sources[row.source] if len(self.sources) > 1 else ""
                reason = UNUSABLE_AGAIN if row.again else outcome.reason
                rejection = Rejection(row.line, reason, outcome.detail, name)
                account.reject(row.source, rejection)
                first = first or (rejection if outcome.reason != LEFT_OUT else None)
                continue
            account.keep(row, outcome, self.max_length, split=isinstance(entry, Conversation))
            samples.extend(outcome)
        return _packed(samples, self.max_length, account.total(), first)

    def _entry(self, row: PlacedRow) -> Entry | RowError:
        if row.ended is not None:
            return RowError(LEFT_OUT, f"{self.sources[row.ended]} has no more rows")
        namespace = f"{self.sources[row.source]}/" if len(self.sources) > 1 else ""
        entry = read_row(row.raw, row.line, namespace=namespace) if isinstance(row.raw, bytes | dict) else row.raw
        if isinstance(entry, Rejection):
            return RowError(entry.reason, entry.detail)
        if entry.truncated and self.exclude_truncated:
            return RowError("an answer was cut at a limit", "truncated=cut would use it without its end")
        return entry

    def _outcomes(self, entries: Sequence[Entry | RowError]) -> list[Outcome]:
        """For every entry its samples, still whole, or why there are none."""
        chats = [entry for entry in entries if not isinstance(entry, Pretokenized | RowError)]
        tokenized = iter(self.template.tokenize_all(chats))
        outcomes: list[Outcome] = []
        for entry in entries:
            outcome: Outcome
            if isinstance(entry, RowError):
                outcome = entry
            elif isinstance(entry, Pretokenized):
                outcome = _checked(entry, len(self.template.tokenizer))
            else:
                outcome = next(tokenized)
            outcomes.append(outcome if isinstance(outcome, RowError) else self._trainable(outcome))
        return outcomes

    def _trainable(self, samples: tuple[TokenizedSample, ...]) -> Outcome:
        """Those that have a place to train a block before max_length; or why there is none."""
        kept = tuple(sample for sample in samples if num_anchors(sample.loss_mask[: self.max_length]))
        if kept:
            return kept
        if any(num_anchors(sample.loss_mask) for sample in samples):
            first = min(int(sample.loss_mask.argmax()) for sample in samples)
            reason = f"no supervised token left after truncation at {self.max_length}"
            return RowError(reason, f"supervision starts at token {first}")
        return RowError("fewer than two supervised tokens in a row", "a block needs two")


def _checked(entry: Pretokenized, vocab_size: int) -> Outcome:
    """Ids that the target has. A mask without a supervised token is refused like any other row."""
    if len(entry.input_ids) and int(entry.input_ids.max()) >= vocab_size:
        return RowError("ids out of range", f"found {entry.input_ids.max()}, the tokenizer has {vocab_size}")
    if not entry.loss_mask.any():
        return RowError("no supervised token", f"the mask of {len(entry.loss_mask)} tokens is zero throughout")
    return (TokenizedSample(entry.id, entry.input_ids, entry.loss_mask),)


def _packed(
    samples: Sequence[TokenizedSample], max_length: int, accounting: Accounting, first: Rejection | None
) -> EncodedRows:
    ids = [sample.input_ids[:max_length] for sample in samples]
    masks = [sample.loss_mask[:max_length] for sample in samples]
    return EncodedRows(
        np.concatenate(ids, dtype="<i4") if ids else np.zeros(0, dtype="<i4"),
        np.concatenate(masks).astype(np.uint8) if masks else np.zeros(0, dtype=np.uint8),
        tuple(len(row) for row in ids),
        tuple(sample.id for sample in samples),
        accounting,
        first,
    )


class _Account:
    """Counts while a batch is gone through."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self._names = names
        self._num_read = [0] * len(names)
        self._num_kept = [0] * len(names)
        self._num_truncated = 0
        self._rejected: dict[str, Rejected] = {}
        self._num_split = 0
        self._num_again = 0

    def reject(self, source: int, rejection: Rejection) -> None:
        self._num_read[source] += 1
        self._rejected = joined(self._rejected, {rejection.reason: Rejected(1, (rejection,))})

    def keep(self, row: PlacedRow, samples: Sequence[TokenizedSample], max_length: int, *, split: bool) -> None:
        self._num_read[row.source] += 1
        self._num_kept[row.source] += 1
        self._num_again += row.again
        self._num_truncated += sum(len(sample.input_ids) > max_length for sample in samples)
        self._num_split += split and len(samples) > 1

    def total(self) -> Accounting:
        shares = zip(self._names, self._num_read, self._num_kept, strict=True)
        return Accounting(
            sum(self._num_read),
            sum(self._num_kept),
            self._num_truncated,
            self._rejected,
            {name: Share(read, kept) for name, read, kept in shares if read},
            {note: count for note, count in ((SPLIT, self._num_split), (AGAIN, self._num_again)) if count},
        )
