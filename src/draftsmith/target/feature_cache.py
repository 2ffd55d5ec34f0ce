"""Hidden states kept on disk, so that every epoch and every later run on the same data skips the target.

One flat bf16 or fp32 file, memory-mapped, with a row [K*H] per token in the order of the sequences given. The
directory appears whole or not at all, and is checked against its hashes when opened.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from draftsmith.errors import DataError
from draftsmith.files import MANIFEST, atomic_directory, manifest_problem, write_manifest
from draftsmith.target.model import DTYPES, Target
from draftsmith.target.paged import paged_zeros

FEATURES = "features.bin"


class FeatureCache:
    """Hidden states of sequence i: rows offsets[i] to offsets[i+1] of the file."""

    def __init__(self, directory: Path, offsets: npt.NDArray[np.int64]) -> None:
        facts = json.loads((directory / MANIFEST).read_text(encoding="utf-8"))
        self.offsets = offsets
        self._rows = torch.from_file(
            str(directory / FEATURES),
            shared=False,
            size=int(offsets[-1]) * facts["feature_size"],
            dtype=DTYPES[facts["dtype"]],
        ).view(-1, facts["feature_size"])

    def batch(self, sequences: Sequence[int], padded_length: int) -> torch.Tensor:
        """Hidden states [B, S, K*H] of these sequences, zero where a row is padded."""
        out = paged_zeros(len(sequences), padded_length, self._rows.shape[1], dtype=self._rows.dtype)
        for row, index in enumerate(sequences):
            start, stop = int(self.offsets[index]), int(self.offsets[index + 1])
            length = min(stop - start, padded_length)
            out[row, :length] = self._rows[start : start + length]
        return out


def open_cache(directory: Path, offsets: npt.NDArray[np.int64]) -> FeatureCache | None:
    """The cache at `directory` if it is there and whole, else None: it is then made again."""
    if not directory.is_dir() or manifest_problem(directory) is not None:
        return None
    return FeatureCache(directory, offsets)


def capture(
    directory: Path,
    target: Target,
    offsets: npt.NDArray[np.int64],
    batches: Iterable[tuple[Sequence[int], torch.Tensor]],
    *,
    progress: Callable[[int], None] | None = None,
) -> FeatureCache:
    """Run every batch (sequence indices, right-padded ids [B, S]) through the target and keep the hidden states.

    Raises DataError before anything is computed if the disk has too little room.
    """
    size = int(offsets[-1]) * target.feature_size * target.dtype.itemsize
    directory.parent.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(directory.parent).free
    if size > 0.9 * free:
        raise DataError(
            f"the hidden states need {size / 1e9:.1f} GB at {directory.parent}, where {free / 1e9:.1f} GB are free; "
            "set target.cache=none, tap fewer layers (target.num_taps), or use less data"
        )
    num_done = 0
    with atomic_directory(directory, replace=True) as aside:
        _reserve(aside / FEATURES, size)
        shape = (int(offsets[-1]), target.feature_size)
        rows = np.memmap(
            aside / FEATURES, dtype=np.uint16 if target.dtype.itemsize == 2 else np.uint32, mode="r+", shape=shape
        )
        bits = torch.int16 if target.dtype.itemsize == 2 else torch.int32
        for sequences, input_ids_BS in batches:
            hidden_BSX = target.features(input_ids_BS.to(target.device)).cpu()
            for row, index in enumerate(sequences):
                start, stop = int(offsets[index]), int(offsets[index + 1])
                rows[start:stop] = hidden_BSX[row, : stop - start].view(bits).numpy().view(rows.dtype)
                num_done += stop - start
            if progress:
                progress(num_done)
        rows.flush()
        del rows
        name = next(name for name, dtype in DTYPES.items() if dtype == target.dtype)
        write_manifest(aside, dtype=name, feature_size=target.feature_size, layer_ids=list(target.layer_ids))
    return FeatureCache(directory, offsets)


def _reserve(path: Path, size: int) -> None:
    """Take the disk space now: a disk that fills under a mapped file kills the process instead of raising."""
    with path.open("wb") as file:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, size)
        else:
            file.truncate(size)
