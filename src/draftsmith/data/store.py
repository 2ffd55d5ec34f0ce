"""Tokenised samples in a memory-mapped directory that is written aside, synced and renamed: whole, or not there.

    tokens.bin   int32, the samples' ids one after another
    mask.bin     uint8, 1 where a token is supervised
    offsets.npy  int64 [num_samples + 1], where samples start
    ids.jsonl    one JSON string a line, the conversation's id
    meta.json    what the store was made from, counts, rejections, size and sha256 of every file, and of itself

Samples of one conversation share its id. The held-out share is chosen by id alone, so a conversation never stands on
both sides, whatever else the file holds.

Opening checks sizes, which is free; `verify` reads everything. Damage is always a DataError, never other training data.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from draftsmith.data.accounting import Accounting
from draftsmith.errors import DataError
from draftsmith.files import sha256_file
from draftsmith.records import TokenizedSample

FORMAT = "draftsmith-token-store"
VERSION = 3  # 2 named the first rejected row of every reason only
READABLE = (2, VERSION)
AGAIN = "delete the store and prepare it again"
Split = Literal["train", "holdout", "all"]


class TokenStore:
    """A store opened for reading; files are mapped, so opening costs nothing whatever the size."""

    def __init__(self, path: Path, meta: dict[str, Any]) -> None:
        self.path = path
        self.meta = meta
        self._offsets: npt.NDArray[np.int64] = _read_offsets(path / "offsets.npy", meta)
        self._tokens = np.memmap(path / "tokens.bin", dtype=np.int32, mode="r")
        self._mask = np.memmap(path / "mask.bin", dtype=np.uint8, mode="r")

    @classmethod
    def open(cls, path: Path) -> TokenStore:
        """Raises DataError if the store is missing, of another version, or its files differ in size from meta.json."""
        meta = read_meta(path)
        for name, size in meta["file_bytes"].items():
            file = path / name
            found = file.stat().st_size if file.is_file() else None
            if found != size:
                state = "is missing" if found is None else f"has {found} bytes"
                raise DataError(f"{file} {state}, meta.json says {size}; {AGAIN}")
        return cls(path, meta)

    @property
    def num_bytes(self) -> int:
        """Of all files that `verify` reads."""
        return sum(self.meta["file_bytes"].values())

    def verify(self) -> None:
        """Read every file and compare its hash. Raises DataError naming the file that is not as it was written."""
        for name, sha256 in self.meta["file_sha256"].items():
            if sha256_file(self.path / name) != sha256:
                raise DataError(f"{self.path / name} has other content than was written; {AGAIN}")

    def __len__(self) -> int:
        return len(self._offsets) - 1

    @property
    def fingerprint(self) -> str:
        return str(self.meta["fingerprint"])

    @property
    def tokenizer_name(self) -> str:
        """Where the tokenizer came from that the store was made with; only its hash says whether it is still there."""
        return str(self.meta.get("tokenizer_name", ""))

    @property
    def vocab_size(self) -> int:
        return int(self.meta["vocab_size"])

    @property
    def accounting(self) -> Accounting:
        return Accounting.from_json(self.meta["accounting"])

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """int64 [num_samples], tokens of each sample."""
        return np.diff(self._offsets)

    @cached_property
    def ids(self) -> list[str]:
        """The conversation's id of each sample."""
        file = self.path / "ids.jsonl"
        try:
            ids = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        except ValueError as error:
            raise DataError(f"{file} is damaged: {error}; {AGAIN}") from None
        if len(ids) != len(self) or not all(isinstance(name, str) for name in ids):
            raise DataError(f"{file} does not hold an id for each of {len(self)} samples; {AGAIN}")
        return ids

    def sample(self, index: int) -> TokenizedSample:
        """Sample `index`; its arrays are copies. Raises IndexError."""
        if not 0 <= index < len(self):
            raise IndexError(f"sample {index} of a store of {len(self)}")
        place = slice(self._offsets[index], self._offsets[index + 1])
        input_ids = self._checked(np.array(self._tokens[place], dtype=np.int32), index)
        return TokenizedSample(self.ids[index], input_ids, np.array(self._mask[place], dtype=np.bool_))

    def prompt(self, index: int) -> npt.NDArray[np.int32]:
        """int32 [P], the tokens before the first supervised one: what the model is asked to continue."""
        sample = self.sample(index)
        return sample.input_ids[: int(np.argmax(sample.loss_mask))]

    @cached_property
    def holdout_indices(self) -> npt.NDArray[np.int64]:
        """Samples of held-out conversations, ascending."""
        share = self.meta["made_from"]["holdout"]
        return np.array([i for i, name in enumerate(self.ids) if is_held_out(name, share)], dtype=np.int64)

    @cached_property
    def train_indices(self) -> npt.NDArray[np.int64]:
        """All other samples, ascending."""
        return np.setdiff1d(np.arange(len(self), dtype=np.int64), self.holdout_indices)

    @cached_property
    def num_anchors(self) -> npt.NDArray[np.int64]:
        """int64 [num_samples], how many positions a have mask[a] and mask[a + 1]."""
        masks = (self._mask[start:stop] for start, stop in self._places(np.arange(len(self))))
        return np.array([np.count_nonzero(mask[:-1] & mask[1:]) for mask in masks], dtype=np.int64)

    def has_anchors_within(self, limit: int) -> bool:
        """Whether any training sample, cut at `limit` tokens, keeps a place to train a block."""
        places = self._places(self.train_indices)
        masks = (self._mask[start : min(stop, start + limit)] for start, stop in places)
        return any(bool(np.any(mask[:-1] & mask[1:])) for mask in masks)

    def tokens_seen(self, split: Split) -> npt.NDArray[np.int64]:
        """Ids that are supervised somewhere in the split, ascending, each once."""
        indices = {"train": self.train_indices, "holdout": self.holdout_indices, "all": np.arange(len(self))}[split]
        seen = np.zeros(self.vocab_size, dtype=np.bool_)
        for index, (start, stop) in zip(indices, self._places(indices), strict=True):
            seen[self._checked(self._tokens[start:stop], int(index))[self._mask[start:stop] != 0]] = True
        return np.flatnonzero(seen)

    def _checked(self, input_ids: npt.NDArray[np.int32], index: int) -> npt.NDArray[np.int32]:
        """The ids of sample `index`, all of which the target has."""
        if input_ids.view(np.uint32).max(initial=0) >= self.vocab_size:  # a negative id is a very large one
            raise DataError(f"sample {index} of {self.path} holds an id outside 0..{self.vocab_size - 1}; {AGAIN}")
        return input_ids

    def _places(self, indices: npt.NDArray[np.int64]) -> Iterator[tuple[int, int]]:
        return zip(self._offsets[indices].tolist(), self._offsets[indices + 1].tolist(), strict=True)


def is_held_out(conversation_id: str, share: float) -> bool:
    """True for the same ids on every machine: the first 8 bytes of the id's sha256, as a number in [0, 1), < share."""
    digest = hashlib.sha256(conversation_id.encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big") < share * 2**64


def read_meta(path: Path) -> dict[str, Any]:
    """A store's meta.json. Raises DataError if it is missing or not one that this version reads."""
    file = path / "meta.json"
    try:
        meta = json.loads(file.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise DataError(f"{path} is not a token store (no meta.json); make one with `draftsmith prepare`") from None
    except (OSError, ValueError) as error:
        raise DataError(f"{file} cannot be read: {error}; delete the store and prepare it again") from error
    if not isinstance(meta, dict) or meta.get("format") != FORMAT:
        raise DataError(f"{file} does not describe a token store; give the directory that `draftsmith prepare` wrote")
    if meta.get("version") not in READABLE:
        reads = " and ".join(map(str, READABLE))
        raise DataError(f"{path} has version {meta.get('version')}, this draftsmith reads {reads}; prepare it again")
    if seal(meta) != meta:
        raise DataError(f"{file} is damaged or was edited; {AGAIN}")
    return meta


def seal(meta: dict[str, Any]) -> dict[str, Any]:
    """The same with the hash of everything else in it."""
    unsealed = {key: value for key, value in meta.items() if key != "meta_sha256"}
    return {**unsealed, "meta_sha256": hashlib.sha256(json.dumps(unsealed, sort_keys=True).encode()).hexdigest()}


def _read_offsets(file: Path, meta: dict[str, Any]) -> npt.NDArray[np.int64]:
    """Where samples start; never out of order, whatever the file holds."""
    try:
        offsets = np.load(file, allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise DataError(f"{file} is damaged: {error}; {AGAIN}") from None
    shape, ends = (meta["num_samples"] + 1,), (0, meta["num_tokens"])
    sound = offsets.dtype == np.int64 and offsets.shape == shape and (int(offsets[0]), int(offsets[-1])) == ends
    if not sound or np.any(np.diff(offsets) < 0):
        raise DataError(f"{file} does not fit meta.json; {AGAIN}")
    return np.asarray(offsets)
