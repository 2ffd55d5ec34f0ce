"""Writes a token store sample by sample into a directory aside, and puts it in place with one rename."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from array import array
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from draftsmith.data.store import FORMAT, VERSION, Accounting, TokenStore, read_meta
from draftsmith.errors import DataError
from draftsmith.files import fsync
from draftsmith.records import TokenizedSample


def fingerprint(made_from: dict[str, Any]) -> str:
    """sha256 of everything that decides a store's content."""
    return hashlib.sha256(json.dumps(made_from, sort_keys=True).encode()).hexdigest()


def existing_store(destination: Path, made_from: dict[str, Any]) -> TokenStore | None:
    """The store at `destination` if it was made from exactly this, None if nothing is there.

    Raises DataError naming the differences if something else is there.
    """
    if not destination.exists():
        return None
    if destination.is_dir() and not any(destination.iterdir()):
        return None
    if not (destination / "meta.json").exists():
        raise DataError(f"{destination} exists and is not a token store; choose another place")
    meta = read_meta(destination)
    if meta["fingerprint"] == fingerprint(made_from):
        return TokenStore.open(destination)
    known = meta["made_from"]
    differences = [
        f"{key} is {made_from.get(key)!r}, there {known.get(key)!r}"
        for key in sorted(known.keys() | made_from.keys())
        if known.get(key) != made_from.get(key)
    ]
    raise DataError(f"{destination} already holds another store: {'; '.join(differences)}; delete it or choose another")


class StoreWriter:
    """Use as a context manager: leaving it without `commit` removes everything that was written."""

    def __init__(self, destination: Path) -> None:
        self.destination = destination
        self._offsets = array("q", [0])
        self._num_supervised = 0
        self._vocab_size = 0

    def __enter__(self) -> StoreWriter:
        parent = self.destination.absolute().parent
        try:
            parent.mkdir(parents=True, exist_ok=True)
            self._aside = Path(tempfile.mkdtemp(prefix=f".{self.destination.name}.partial-", dir=parent))
            self._aside.chmod(0o755)  # mkdtemp makes it private; what we publish is not
        except OSError as error:
            why = error.strerror or error
            raise DataError(f"{self.destination} cannot be written: {why}; choose another place") from error
        self._tokens = (self._aside / "tokens.bin").open("wb")
        self._mask = (self._aside / "mask.bin").open("wb")
        self._ids = (self._aside / "ids.jsonl").open("w", encoding="utf-8")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._close()
        except OSError:
            if kind is None:
                raise
        finally:
            shutil.rmtree(self._aside, ignore_errors=True)
        if isinstance(error, OSError):
            why = error.strerror or error
            raise DataError(f"{self.destination} could not be written: {why}; nothing is left of it") from error

    @property
    def num_samples(self) -> int:
        return len(self._offsets) - 1

    def add(self, sample: TokenizedSample) -> None:
        """Append one sample."""
        self._tokens.write(np.ascontiguousarray(sample.input_ids, dtype="<i4").tobytes())
        self._mask.write(np.ascontiguousarray(sample.loss_mask, dtype=np.uint8).tobytes())
        self._ids.write(json.dumps(sample.id) + "\n")
        self._offsets.append(self._offsets[-1] + len(sample.input_ids))
        self._num_supervised += int(np.count_nonzero(sample.loss_mask))

    def commit(self, made_from: dict[str, Any], accounting: Accounting) -> TokenStore:
        """Sync and rename into place. If an identical store has come there meanwhile, that one is used."""
        self._close()
        np.save(self._aside / "offsets.npy", np.frombuffer(self._offsets, dtype=np.int64))
        meta = {
            "format": FORMAT,
            "version": VERSION,
            "fingerprint": fingerprint(made_from),
            "made_from": made_from,
            "vocab_size": made_from["vocab_size"],
            "num_samples": self.num_samples,
            "num_tokens": self._offsets[-1],
            "num_supervised": self._num_supervised,
            "accounting": accounting.to_json(),
            "file_bytes": {file.name: file.stat().st_size for file in sorted(self._aside.iterdir())},
        }
        (self._aside / "meta.json").write_text(json.dumps(meta, indent=2) + "\n", encoding="utf-8")
        for file in [*self._aside.iterdir(), self._aside]:
            fsync(file)
        try:
            os.rename(self._aside, self.destination)
        except OSError:
            store = existing_store(self.destination, made_from)
            if store is None:
                raise
            return store
        fsync(self.destination.absolute().parent)
        return TokenStore.open(self.destination)

    def _close(self) -> None:
        for file in (self._tokens, self._mask, self._ids):
            file.close()
