"""What a token store will teach, before any weight is loaded: figures, rows to read, and what makes it unfit.

The analysis is pure: a store, the template that it should have been made with, and the tops of length buckets go in,
one frozen record comes out. Faults that give healthy curves and a useless drafter are `problems`; what a person should
know and may want is in `notes`.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from draftsmith.data.marks import Marks, find_marks, occurrences
from draftsmith.data.store import TokenStore
from draftsmith.data.template import ChatTemplate, num_anchors, template_sha256, tokenizer_sha256
from draftsmith.errors import DataError
from draftsmith.keyed import keyed_generator
from draftsmith.records import TokenizedSample

NUM_CHECKED_BY_TRAIN = 2048
NUM_BINS = 32
DOUBLED_SHARE = 0.01  # people do quote markers to a model; a template applied twice shows in every row
NUM_NAMED = 3


@dataclass(frozen=True)
class Problem:
    """Why a store is refused: `kind` is one of few, `detail` names samples and the way out."""

    kind: str
    num_samples: int
    detail: str


@dataclass(frozen=True)
class BucketShare:
    """Training samples of one length bucket; `top` is its inclusive edge, anchors are places to train a block."""

    top: int
    num_samples: int
    num_tokens: int
    num_supervised: int
    num_anchors: int


@dataclass(frozen=True)
class Bin:
    """Samples of low <= length <= high."""

    low: int
    high: int
    num_samples: int


@dataclass(frozen=True)
class ShownRow:
    """A sample to read. segments: (text, supervised) in order; empty where no tokenizer fits."""

    id: str
    num_tokens: int
    num_supervised: int
    segments: tuple[tuple[str, bool], ...] = ()


@dataclass(frozen=True)
class Inspection:
    """Everything that `draftsmith inspect` shows. num_cut_answers: answers without their end, cut at a limit."""

    source: str
    fingerprint: str
    template_sha256: str
    tokenizer_sha256: str
    num_samples: int
    num_holdout: int
    num_tokens: int
    num_supervised: int
    num_anchors: int
    num_truncated: int
    num_cut_answers: int | None
    num_duplicates: int
    num_leaked: int
    accounting: dict[str, Any]
    buckets: tuple[BucketShare, ...]
    histogram: tuple[Bin, ...]
    longest: tuple[ShownRow, ...]
    rows: tuple[ShownRow, ...]
    problems: tuple[Problem, ...]
    notes: tuple[str, ...]

    @property
    def supervised_share(self) -> float:
        return self.num_supervised / self.num_tokens if self.num_tokens else 0.0

    def to_json(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "supervised_share": self.supervised_share}


@dataclass
class _Found:
    """Counts of one pass over the samples."""

    zero: list[str]
    endless: list[str]
    doubled: dict[str, list[str]]
    num_cut_answers: int = 0


def inspect_store(
    store: TokenStore,
    template: ChatTemplate | None,
    *,
    source: str,
    edges: Sequence[int],
    num_rows: int = 3,
    num_longest: int = 5,
    seed: int = 0,
    progress: Callable[[int], None] | None = None,
) -> Inspection:
    """Look at every sample of `store`. Without `template` nothing is decoded, and turns cannot be checked.

    `edges` are inclusive bucket tops, ascending. `progress` is called with the number of samples looked at.
    """
    mismatch = None if template is None else tokenizer_problem(store, template.tokenizer)
    fitting = template if mismatch is None else None
    marks = None if fitting is None else _marks(store, fitting)
    figures = np.zeros((len(store), 2), dtype=np.int64)
    digests = np.zeros(len(store), dtype=np.uint64)

    def counted() -> Iterable[TokenizedSample]:
        for index in range(len(store)):
            sample = store.sample(index)
            figures[index] = np.count_nonzero(sample.loss_mask), num_anchors(sample.loss_mask)
            digests[index] = int.from_bytes(hashlib.blake2b(sample.input_ids.tobytes(), digest_size=8).digest(), "big")
            if progress is not None:
                progress(index + 1)
            yield sample

    found = _look(store, counted(), marks)
    made = store.meta["made_from"]
    lengths, train = store.lengths, store.train_indices
    longest = np.argsort(-lengths, kind="stable")[:num_longest]
    return Inspection(
        source=source,
        fingerprint=store.fingerprint,
        template_sha256=made["template_sha256"],
        tokenizer_sha256=made["tokenizer_sha256"],
        num_samples=len(store),
        num_holdout=len(store.holdout_indices),
        num_tokens=int(lengths.sum()),
        num_supervised=int(figures[:, 0].sum()),
        num_anchors=int(figures[:, 1].sum()),
        num_truncated=store.accounting.num_truncated,
        num_cut_answers=None if marks is None else found.num_cut_answers,
        num_duplicates=len(store) - len(np.unique(digests)),
        num_leaked=int(np.isin(digests[store.holdout_indices], digests[train]).sum()),
        accounting=store.accounting.to_json(),
        buckets=_buckets(lengths[train], figures[train], edges),
        histogram=_histogram(lengths),
        longest=tuple(_shown(store, int(index), figures, None) for index in longest),
        rows=tuple(_shown(store, index, figures, fitting) for index in _drawn(len(store), num_rows, seed)),
        problems=(*([mismatch] if mismatch else []), *_problems(store, found, len(store))),
        notes=tuple(_notes(store, found, template, len(store))),
    )


def check_store(store: TokenStore, tokenizer: Any) -> None:
    """The part of the inspection that costs a moment: what `train` does by itself, on samples spread over the store.

    Raises DataError if the tokenizer is another one, or if masks, ends of turns or the template's use are wrong.
    """
    mismatch = tokenizer_problem(store, tokenizer)
    if mismatch is not None:
        raise DataError(mismatch.detail)
    marks = _marks(store, ChatTemplate(tokenizer, store.meta["made_from"]["template_kwargs"]))
    num_checked = min(len(store), NUM_CHECKED_BY_TRAIN)
    spread = np.linspace(0, len(store) - 1, num_checked).astype(np.int64)
    problems = _problems(store, _look(store, map(store.sample, spread.tolist()), marks), num_checked)
    if problems:
        detail = "; ".join(problem.detail for problem in problems)
        raise DataError(f"{store.path}: {detail}; `draftsmith inspect {store.path}` shows them")


def tokenizer_problem(store: TokenStore, tokenizer: Any) -> Problem | None:
    """The ids of a store mean nothing to another tokenizer, and its masks nothing under another template."""
    made = store.meta["made_from"]
    pairs = (
        ("tokenizer", made["tokenizer_sha256"], tokenizer_sha256(tokenizer)),
        ("chat template", made["template_sha256"], template_sha256(tokenizer, made["template_kwargs"])),
    )
    for name, ours, theirs in pairs:
        if ours != theirs:
            detail = (
                f"{store.path} was made with another {name} ({ours[:12]}) than that of {tokenizer.name_or_path} "
                f"({theirs[:12]}); prepare it again with this target"
            )
            return Problem(f"another {name}", len(store), detail)
    return None


def _marks(store: TokenStore, template: ChatTemplate) -> Marks:
    markers = store.meta["made_from"]["text_markers"]
    return find_marks(template, ends=[markers[1]] if markers else [])


def _look(store: TokenStore, samples: Iterable[TokenizedSample], marks: Marks | None) -> _Found:
    found = _Found([], [], {})
    made = store.meta["made_from"]
    for sample in samples:
        if not num_anchors(sample.loss_mask):
            found.zero.append(sample.id)
            continue
        if marks is None:
            continue
        unclosed = num_unclosed(sample, marks, is_truncated=len(sample.input_ids) >= made["max_length"])
        if unclosed and made["truncated"] == "cut":
            found.num_cut_answers += unclosed
        elif unclosed:
            found.endless.append(sample.id)
        for what, pattern in marks.doubled:
            if occurrences(sample.input_ids, pattern).size:
                found.doubled.setdefault(what, []).append(sample.id)
                break
    return found


def num_unclosed(sample: TokenizedSample, marks: Marks, *, is_truncated: bool) -> int:
    """Answers of which the last supervised token does not end a turn. The last one may if the sample was cut there.

    Supervised runs with nothing special between them belong to one answer: generation markers may leave out a part.
    """
    ends = np.asarray(sorted(marks.end_ids), dtype=np.int32)
    edges = np.flatnonzero(np.diff(np.concatenate(([0], sample.loss_mask.view(np.int8), [0]))))
    starts, stops = edges[::2], edges[1::2]
    closed = np.isin(sample.input_ids[stops - 1], ends)
    unclosed = 0
    for run in np.flatnonzero(~closed).tolist():
        is_last = run + 1 == len(starts)
        if is_last and is_truncated and stops[run] == len(sample.input_ids):
            continue
        if not is_last and not np.isin(sample.input_ids[stops[run] : starts[run + 1]], ends).any():
            continue
        unclosed += 1
    return unclosed


def _problems(store: TokenStore, found: _Found, num_checked: int) -> list[Problem]:
    problems = []
    if found.zero:
        detail = f"{len(found.zero):,} samples have no place to train a block, their loss mask is empty"
        problems.append(Problem("zero mask", len(found.zero), f"{detail} ({_named(found.zero)}); prepare them again"))
    if found.endless:
        detail = f"in {len(found.endless):,} samples an answer's end-of-turn token is not supervised"
        way_out = "a drafter would never learn to stop; prepare them again"
        problems.append(
            Problem("no end-of-turn token", len(found.endless), f"{detail} ({_named(found.endless)}); {way_out}")
        )
    for what, names in found.doubled.items():
        if len(names) > DOUBLED_SHARE * num_checked:
            detail = f"the chat template was applied twice: in {len(names):,} samples {what} ({_named(names)})"
            problems.append(
                Problem("template applied twice", len(names), f"{detail}; give rows as messages, unrendered")
            )
    return problems


def _notes(store: TokenStore, found: _Found, template: ChatTemplate | None, num_checked: int) -> list[str]:
    notes = []
    limit = store.meta["made_from"]["limit"]
    if limit is not None and store.accounting.num_read >= limit:
        notes.append(f"only the first {limit:,} rows were read, as data.limit says; how many there are is not known")
    if template is None:
        notes.append("no tokenizer is known: text is not shown, and ends of turns are not checked; give --target")
    if found.num_cut_answers:
        notes.append(f"{found.num_cut_answers:,} answers were cut at a limit and are used without their end")
    notes += [
        f"in {len(names):,} samples {what} ({_named(names)}); if their text does not speak of templates, leave them out"
        for what, names in found.doubled.items()
        if len(names) <= DOUBLED_SHARE * num_checked
    ]
    return notes


def _named(names: Sequence[str]) -> str:
    shown = [repr(name if len(name) <= 40 else name[:39] + "…") for name in names[:NUM_NAMED]]
    return ", ".join(shown) + (", ..." if len(names) > NUM_NAMED else "")


def _buckets(
    lengths: npt.NDArray[np.int64], figures: npt.NDArray[np.int64], edges: Sequence[int]
) -> tuple[BucketShare, ...]:
    place = np.minimum(np.searchsorted(np.asarray(edges), lengths, side="left"), len(edges) - 1)
    shares = []
    for bucket, top in enumerate(edges):
        here = place == bucket
        supervised, anchors = figures[here].sum(axis=0).tolist()
        shares.append(BucketShare(int(top), int(here.sum()), int(lengths[here].sum()), supervised, anchors))
    return tuple(shares)


def _histogram(lengths: npt.NDArray[np.int64]) -> tuple[Bin, ...]:
    width = max(1, -(-int(lengths.max()) // NUM_BINS))
    counts = np.bincount((lengths - 1) // width)
    return tuple(Bin(i * width + 1, (i + 1) * width, int(count)) for i, count in enumerate(counts))


def _drawn(num_samples: int, num_rows: int, seed: int) -> list[int]:
    chosen = keyed_generator(seed, "inspect").choice(num_samples, size=min(num_rows, num_samples), replace=False)
    return sorted(chosen.tolist())


def _shown(store: TokenStore, index: int, figures: npt.NDArray[np.int64], template: ChatTemplate | None) -> ShownRow:
    sample = store.sample(index)
    segments = () if template is None else tuple(segments_of(template.tokenizer, sample))
    return ShownRow(sample.id, len(sample.input_ids), int(figures[index, 0]), segments)


def segments_of(tokenizer: Any, sample: TokenizedSample) -> list[tuple[str, bool]]:
    """The sample's text, cut where supervision begins and ends.

    Prefixes are decoded, because what a token looks like may depend on those before it.
    """
    cuts = [*(np.flatnonzero(np.diff(sample.loss_mask)) + 1).tolist(), len(sample.input_ids)]
    segments, start, before = [], 0, ""
    for stop in cuts:
        text = str(tokenizer.decode(sample.input_ids[:stop].tolist(), skip_special_tokens=False))
        segments.append((text[len(before) :], bool(sample.loss_mask[start])))
        start, before = stop, text
    return segments
