"""Writes a token store batch by batch into a directory aside, and puts it in place with one rename.

What is aside survives a kill: from time to time everything is synced and the sizes are noted, and a later writer of
the same store cuts the files back to the last note and goes on from there. Leaving the writer with an error of the
data removes what was written, leaving it because somebody stopped it keeps that.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import json
import os
import shutil
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import numpy as np

from draftsmith.data.accounting import Accounting
from draftsmith.data.encode import EncodedRows
from draftsmith.data.store import FORMAT, VERSION, TokenStore, read_meta, seal
from draftsmith.errors import DataError, Interrupted
from draftsmith.files import Held, atomic_write, fsync, locked, sha256_file

GROWING = ("tokens.bin", "mask.bin", "ids.jsonl", "lengths.bin")
PROGRESS = "progress.json"
STOPPED = (KeyboardInterrupt, Interrupted, SystemExit)


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


@dataclass
class _State:
    """What stands in the files."""

    num_samples: int
    num_supervised: int
    accounting: Accounting


class StoreWriter:
    """A context manager. `accounting` tells what an interrupted writer of the same store has left: go on after it.

    Raises DataError if another process is writing this store, or if it cannot be written.
    """

    def __init__(self, destination: Path, made_from: dict[str, Any]) -> None:
        self.destination = destination
        self._made_from = made_from
        self._aside = destination.absolute().with_name(f".{destination.name}.partial")
        self._files: dict[str, IO[bytes]] = {}

    def __enter__(self) -> StoreWriter:
        parent = self._aside.parent
        with ExitStack() as stack:
            try:
                parent.mkdir(parents=True, exist_ok=True)
                stack.enter_context(locked(parent / f".{self.destination.name}.lock"))
                self._state = self._resumed() or self._fresh()
                for name in GROWING:
                    self._files[name] = (self._aside / name).open("ab")
            except Held as held:
                raise DataError(
                    f"{self.destination} is being prepared by process {held.pid}; wait for it, or stop it and give the "
                    "same command again"
                ) from None
            except OSError as error:
                why = error.strerror or error
                raise DataError(f"{self.destination} cannot be written: {why}; choose another place") from error
            self._lock = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            if isinstance(error, STOPPED):
                with contextlib.suppress(OSError):  # then the note before holds
                    self.checkpoint()
            for file in self._files.values():
                with contextlib.suppress(OSError):
                    file.close()
            if not isinstance(error, STOPPED) or self.accounting.num_read == 0:
                shutil.rmtree(self._aside, ignore_errors=True)
            if isinstance(error, OSError):
                why = error.strerror or error
                raise DataError(f"{self.destination} could not be written: {why}; nothing is left of it") from error

    @property
    def accounting(self) -> Accounting:
        return self._state.accounting

    def append(self, rows: EncodedRows) -> None:
        """The samples of one batch, and the account of its rows."""
        self._files["tokens.bin"].write(rows.input_ids.astype("<i4", copy=False).tobytes())
        self._files["mask.bin"].write(rows.loss_mask.tobytes())
        self._files["ids.jsonl"].write("".join(json.dumps(name) + "\n" for name in rows.ids).encode())
        self._files["lengths.bin"].write(np.array(rows.lengths, dtype="<i8").tobytes())
        state = self._state
        state.num_samples += len(rows.lengths)
        state.num_supervised += int(np.count_nonzero(rows.loss_mask))
        state.accounting += rows.accounting

    def checkpoint(self) -> None:
        """Sync everything and note how far it goes."""
        for file in self._files.values():
            file.flush()
            os.fsync(file.fileno())
        progress = {
            "fingerprint": fingerprint(self._made_from),
            "num_samples": self._state.num_samples,
            "num_supervised": self._state.num_supervised,
            "accounting": self._state.accounting.to_json(),
            "file_bytes": {name: file.tell() for name, file in self._files.items()},
        }
        atomic_write(self._aside / PROGRESS, json.dumps(progress) + "\n")

    def commit(self, *, tokenizer_name: str = "") -> TokenStore:
        """Sync and rename into place. `tokenizer_name` says where a tokenizer to read the store with may be found."""
        for file in self._files.values():
            file.close()
        lengths = np.fromfile(self._aside / "lengths.bin", dtype="<i8")
        np.save(self._aside / "offsets.npy", np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64))
        for name in ("lengths.bin", PROGRESS):
            (self._aside / name).unlink(missing_ok=True)
        content = sorted(self._aside.iterdir())
        meta = {
            "format": FORMAT,
            "version": VERSION,
            "fingerprint": fingerprint(self._made_from),
            "made_from": self._made_from,
            "vocab_size": self._made_from["vocab_size"],
            "tokenizer_name": tokenizer_name,
            "num_samples": self._state.num_samples,
            "num_tokens": int(lengths.sum()),
            "num_supervised": self._state.num_supervised,
            "accounting": self._state.accounting.to_json(),
            "file_bytes": {file.name: file.stat().st_size for file in content},
            "file_sha256": {file.name: sha256_file(file) for file in content},
        }
        (self._aside / "meta.json").write_text(json.dumps(seal(meta), indent=2) + "\n", encoding="utf-8")
        for path in [*self._aside.iterdir(), self._aside]:
            fsync(path)
        os.rename(self._aside, self.destination)
        fsync(self._aside.parent)
        return TokenStore.open(self.destination)

    def _fresh(self) -> _State:
        """An empty directory, whatever earlier writers have left."""
        for old in self._aside.parent.glob(f"{glob.escape(self._aside.name)}*"):
            shutil.rmtree(old, ignore_errors=True)
        self._aside.mkdir()
        return _State(0, 0, Accounting())

    def _resumed(self) -> _State | None:
        """What the last note of an interrupted writer says, the files cut back to it; None if there is none to use."""
        try:
            noted = json.loads((self._aside / PROGRESS).read_text(encoding="utf-8"))
            if noted["fingerprint"] != fingerprint(self._made_from):
                return None
            sizes = {name: int(noted["file_bytes"][name]) for name in GROWING}
            if any((self._aside / name).stat().st_size < size for name, size in sizes.items()):
                return None
            state = _State(noted["num_samples"], noted["num_supervised"], Accounting.from_json(noted["accounting"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None
        for name, size in sizes.items():
            os.truncate(self._aside / name, size)
        return state
