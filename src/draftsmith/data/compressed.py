"""Files that may be compressed, told by their first bytes; a file that ends early is an error, never a short file."""

from __future__ import annotations

import gzip
import importlib
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from draftsmith.errors import DataError

GZIP, ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
CHUNK_BYTES = 1 << 20


def optional(module: str, reason: str) -> Any:
    """A module of the extra `data`. Raises DataError that says what to install."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise DataError(f"{reason}, which needs the package {module}; install draftsmith[data]") from None


@contextmanager
def readable(name: str) -> Iterator[None]:
    """Whatever a file does while it is read becomes a DataError that names it."""
    try:
        yield
    except FileNotFoundError:
        raise DataError(f"{name} does not exist; give a JSONL file of conversations") from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"{name} is not a whole gzip file: {error}; compress it again") from None
    except OSError as error:
        raise DataError(f"{name} cannot be read: {error.strerror or error}") from error


@contextmanager
def open_decompressed(path: Path) -> Iterator[io.BufferedReader]:
    """The file's content as bytes. Reading raises what `readable` explains."""
    with path.open("rb") as file:
        start = file.read(4)
        file.seek(0)
        if start.startswith(GZIP):
            with gzip.GzipFile(fileobj=file) as unpacked:
                yield io.BufferedReader(unpacked, CHUNK_BYTES)
        elif start.startswith(ZSTD):
            yield io.BufferedReader(_Zstd(file, path), CHUNK_BYTES)
        elif path.suffix in (".gz", ".zst") and start:
            raise DataError(
                f"{path} is not a whole {path.suffix[1:]} file: it starts with {start!r}; compress it again"
            )
        else:
            yield io.BufferedReader(file, CHUNK_BYTES)


class _Zstd(io.RawIOBase):
    """Frames one after another. The library's own stream takes half a frame for the end of the file."""

    def __init__(self, file: IO[bytes], path: Path) -> None:
        self._library = optional("zstandard", f"{path} is compressed with zstd")
        self._file, self._path = file, path
        self._frame = self._library.ZstdDecompressor().decompressobj()
        self._ready = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._ready:
            if not self._refill():
                return 0
        taken = self._ready[: len(buffer)]
        buffer[: len(taken)] = taken
        self._ready = self._ready[len(taken) :]
        return len(taken)

    def _refill(self) -> bool:
        packed = self._frame.unused_data if self._frame.eof else b""
        packed = packed or self._file.read(CHUNK_BYTES // 8)
        if not packed and not self._frame.eof:
            raise DataError(f"{self._path} is not a whole zstd file: it ends early; compress it again")
        if not packed:
            return False
        if self._frame.eof:
            self._frame = self._library.ZstdDecompressor().decompressobj()
        try:
            self._ready = self._frame.decompress(packed)
        except self._library.ZstdError as error:
            raise DataError(f"{self._path} is not a whole zstd file: {error}; compress it again") from None
        return True
