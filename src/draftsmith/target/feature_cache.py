"""Hidden states kept on disk, so that later epochs and later runs on the same data skip the target.

    features.bin   one row [K*H] per token, in the target's own precision, sequence after sequence
    done.txt       one line per sequence that is there: its number and the first half of its bytes' SHA-256
    about.json     what the file holds; one that differs is begun anew

Nothing is believed that is not verified: opening reads every sequence that is said to be there and keeps it only if its
bytes have the hash. So a cache may be half full, killed at any time, or damaged: what is missing is computed again.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from draftsmith.errors import DataError
from draftsmith.files import atomic_write
from draftsmith.records import Batch, BatchSpec
from draftsmith.target.model import DTYPES, Target
from draftsmith.target.paged import paged_zeros

FEATURES, DONE, ABOUT = "features.bin", "done.txt", "about.json"
VERSION = 2


class FeatureCache:
    """Hidden states of sequence i: rows offsets[i] to offsets[i+1] of the file.

    `specs` are the batches in which sequences are computed, each sequence in one: what is kept depends on nothing else.
    Recording may happen in several threads. Another process may read the same complete cache, and never write it.
    """

    def __init__(
        self, directory: Path, target: Target, offsets: npt.NDArray[np.int64], specs: Sequence[BatchSpec]
    ) -> None:
        """Open, verify and reserve. Raises DataError if there is too little room or another process is writing."""
        self.directory = directory
        self.offsets = offsets
        self.specs = specs
        self._target = target
        self._spec_of = {sample: place for place, spec in enumerate(specs) for sample in spec.samples}
        self._present = np.zeros(len(offsets) - 1, dtype=np.bool_)
        self._wanted = np.zeros(len(offsets) - 1, dtype=np.bool_)
        self._wanted[list(self._spec_of)] = True
        self._lock, alone = _locked(directory)
        self._reserve(alone)
        self._rows = torch.from_file(
            str(directory / FEATURES), shared=True, size=int(offsets[-1]) * target.feature_size, dtype=target.dtype
        ).view(-1, target.feature_size)
        self._verify()
        if not (alone or self.is_complete):
            raise DataError(f"{directory} is damaged, and another run reads it; wait for it, or set target.cache=none")
        if self.is_complete:
            fcntl.flock(self._lock, fcntl.LOCK_SH)
        self._num_found = self.num_tokens
        self._done = os.open(directory / DONE, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def __del__(self) -> None:
        for name in ("_done", "_lock"):
            if name in self.__dict__:
                os.close(self.__dict__[name])

    @property
    def is_complete(self) -> bool:
        return not bool((self._wanted & ~self._present).any())

    @property
    def num_tokens(self) -> int:
        """Tokens whose hidden states are there."""
        return int(np.diff(self.offsets)[self._present].sum())

    @property
    def num_computed(self) -> int:
        """Tokens of these that were not there when the cache was opened."""
        return self.num_tokens - self._num_found

    def missing(self, sequences: Sequence[int]) -> list[int]:
        return [index for index in sequences if not self._present[index]]

    def spec_of(self, sequence: int) -> BatchSpec:
        """The batch in which this sequence is computed."""
        return self.specs[self._spec_of[sequence]]

    def record(self, sequences: Sequence[int], hidden_BSX: torch.Tensor) -> None:
        """Keep the hidden states of these sequences, of which `hidden_BSX` holds at least their own length each."""
        hidden_BSX, lines = hidden_BSX.cpu(), []
        for row, index in enumerate(sequences):
            start, stop = int(self.offsets[index]), int(self.offsets[index + 1])
            self._rows[start:stop] = hidden_BSX[row, : stop - start]
            lines.append(f"{index} {self._digest(index)}\n")
        os.write(self._done, "".join(lines).encode())
        self._present[list(sequences)] = True

    def batch(self, sequences: Sequence[int], padded_length: int) -> torch.Tensor:
        """Hidden states [B, S, K*H] of these sequences, zero where a row is padded."""
        out = paged_zeros(len(sequences), padded_length, self._rows.shape[1], dtype=self._rows.dtype)
        for row, index in enumerate(sequences):
            start, stop = int(self.offsets[index]), int(self.offsets[index + 1])
            length = min(stop - start, padded_length)
            out[row, :length] = self._rows[start : start + length]
        return out

    def sync(self) -> None:
        """Wait until everything is on disk."""
        for name in (FEATURES, DONE):
            descriptor = os.open(self.directory / name, os.O_RDONLY)
            os.fsync(descriptor)
            os.close(descriptor)

    def _reserve(self, alone: bool) -> None:
        """Take the disk space now: a disk that fills under a mapped file kills the process instead of raising."""
        size = int(self.offsets[-1]) * self._target.feature_size * self._target.dtype.itemsize
        about = _about(self._target, self.offsets)
        if not alone or (_known(self.directory) == about and _size(self.directory / FEATURES) == size):
            return
        require_room(self.directory, size)
        try:
            shutil.rmtree(self.directory, ignore_errors=True)
            self.directory.mkdir(parents=True)
            with (self.directory / FEATURES).open("wb") as file:
                if hasattr(os, "posix_fallocate"):
                    os.posix_fallocate(file.fileno(), 0, size)
                else:
                    file.truncate(size)
            atomic_write(self.directory / ABOUT, json.dumps(about) + "\n")
        except OSError as error:
            shutil.rmtree(self.directory, ignore_errors=True)
            why = error.strerror or error
            raise DataError(
                f"hidden states cannot be kept in {self.directory}: {why}; set target.cache=none"
            ) from error

    def _verify(self) -> None:
        """Mark what is there. A line torn by a kill is cut off."""
        path = self.directory / DONE
        whole, newline, torn = path.read_bytes().rpartition(b"\n") if path.exists() else (b"", b"", b"")
        if torn:
            os.truncate(path, len(whole) + len(newline))
        said: dict[int, str] = {}
        for line in whole.split(b"\n") if whole else []:
            number, _, known = line.partition(b" ")
            if number.isdigit() and int(number) < len(self._present):
                said[int(number)] = known.decode("ascii", "replace")
        for index, digest in sorted(said.items()):
            self._present[index] = self._digest(index) == digest

    def _digest(self, index: int) -> str:
        rows = self._rows[int(self.offsets[index]) : int(self.offsets[index + 1])]
        return hashlib.sha256(rows.view(torch.uint8).numpy().data).hexdigest()[:32]


def require_room(directory: Path, size: int) -> None:
    """Raises DataError if the disk has too little room for `size` bytes."""
    place = next(parent for parent in directory.absolute().parents if parent.exists())
    free = shutil.disk_usage(place).free
    if size > 0.9 * free:
        raise DataError(
            f"the hidden states need {size / 1e9:.1f} GB at {directory.parent}, where {free / 1e9:.1f} GB are free; "
            "set target.cache=none, tap fewer layers (target.num_taps), use less data, or set XDG_CACHE_HOME to a "
            "larger disk"
        )


def capture(
    cache: FeatureCache,
    target: Target,
    collate: Callable[[BatchSpec], Batch],
    *,
    progress: Callable[[int], None] | None = None,
) -> None:
    """Run what is missing through the target, in the cache's own batches."""
    for spec in cache.specs:
        if cache.missing(spec.samples):
            hidden_BSX = target.features(collate(spec).input_ids.to(target.device))
            cache.record(spec.samples, hidden_BSX)
            if progress is not None:
                progress(cache.num_tokens)
    cache.sync()


def _about(target: Target, offsets: npt.NDArray[np.int64]) -> dict[str, Any]:
    name = next(name for name, dtype in DTYPES.items() if dtype == target.dtype)
    rows = hashlib.sha256(offsets.tobytes()).hexdigest()
    known = {"dtype": name, "feature_size": target.feature_size, "layer_ids": list(target.layer_ids)}
    return {"version": VERSION, **known, "offsets_sha256": rows, "num_tokens": int(offsets[-1])}


def _known(directory: Path) -> Any:
    try:
        return json.loads((directory / ABOUT).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _size(path: Path) -> int | None:
    return path.stat().st_size if path.is_file() else None


def _locked(directory: Path) -> tuple[int, bool]:
    """A descriptor that holds the cache: alone, as whoever writes must be, or with others who read."""
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(directory.with_name(directory.name + ".lock"), os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        why = error.strerror or error
        raise DataError(f"hidden states cannot be kept in {directory}: {why}; set target.cache=none") from error
    for kind in (fcntl.LOCK_EX, fcntl.LOCK_SH):
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            continue
        return descriptor, kind == fcntl.LOCK_EX
    os.close(descriptor)
    raise DataError(f"another run is writing the hidden states in {directory}; wait for it, or set target.cache=none")
