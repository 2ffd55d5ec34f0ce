"""Where rows come from, and with what weight: a file, a directory, or a data set of the hub."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import httpx2

from draftsmith.data.compressed import optional, readable
from draftsmith.errors import DataError

HUB = "hub:"
SUFFIXES = (".jsonl", ".json", ".ndjson", ".parquet")
OPTIONS = ("split", "subset", "revision")


@dataclass(frozen=True)
class Source:
    """One source. With `weight`, its share of the rows that several sources give together; without, all of its rows.

    `split`, `subset` and `revision` are for data sets of the hub and for saved ones.
    """

    path: str
    weight: float | None = None
    split: str | None = None
    subset: str | None = None
    revision: str | None = None

    @property
    def on_hub(self) -> bool:
        return self.path.startswith(HUB)

    @property
    def place(self) -> tuple[str, str | None, str | None]:
        """The same for two ways to write one source."""
        path = self.path if self.on_hub else os.path.realpath(self.path)
        return path, self.split or None, self.subset or None

    @property
    def saved_to_disk(self) -> bool:
        """Whether `datasets` wrote this directory."""
        folder = Path(self.path)
        return not self.on_hub and any((folder / name).is_file() for name in ("dataset_dict.json", "state.json"))

    def files(self) -> list[Path]:
        """The file, or all files of the directory that hold rows, by name. Raises DataError if there is none."""
        path = Path(self.path)
        with readable(self.path):
            if not path.is_dir():
                path.stat()
                return [path]
            inside = sorted(file for file in path.rglob("*") if file.is_file())
        if self.saved_to_disk:
            return inside
        found = [file for file in inside if kind_of(file) in SUFFIXES]
        if not found:
            raise DataError(f"{path} cannot be read: no file in it ends in {', '.join(SUFFIXES)}")
        return found

    def sha256(self) -> str:
        """Of the bytes on disk, compressed as they are; for a data set of the hub, of its name and commit."""
        if self.on_hub:
            return hashlib.sha256(f"{self.path}@{hub_commit(self)} {self.subset} {self.split}".encode()).hexdigest()
        digest = hashlib.sha256(repr(self.split).encode()) if self.split else hashlib.sha256()
        for path in self.files():
            with readable(str(path)), path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
        return digest.hexdigest()


def parse_source(text: str) -> Source:
    """`[WEIGHT:]PATH` or `[WEIGHT:]hub:ORG/NAME[?split=...&subset=...&revision=...]`. Raises DataError."""
    weighted = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+):(.+)", text)
    weight, path = (float(weighted[1]), weighted[2]) if weighted and not Path(text).exists() else (None, text)
    path, _, query = path.partition("?") if path.startswith(HUB) or not Path(path).exists() else (path, "", "")
    if not path.removeprefix(HUB).strip():
        raise DataError(f"source {text!r} names nothing to read; give a file, a directory or hub:ORG/NAME")
    options = dict(parse_qsl(query, keep_blank_values=True))
    unknown = sorted(options.keys() - set(OPTIONS))
    if unknown:
        raise DataError(f"source {text!r}: unknown option {unknown[0]!r}; known are {', '.join(OPTIONS)}")
    return Source(path, weight, **options)


def as_sources(given: Path | str | Source | Iterable[Source]) -> tuple[Source, ...]:
    """Checked sources: at least one, each once, all with a weight or none."""
    if isinstance(given, Path | str):
        given = [Source(str(given))]
    sources = (given,) if isinstance(given, Source) else tuple(given)
    if not sources:
        raise DataError("there is no source to read; give at least one file")
    weights = [source.weight for source in sources]
    if any(weight is None for weight in weights) and any(weight is not None for weight in weights):
        raise DataError("some sources have a weight and others have none; give all of them one, or none")
    wrong = [source for source in sources if source.weight is not None and not 0 < source.weight < float("inf")]
    if wrong:
        raise DataError(f"{wrong[0].path} has weight {wrong[0].weight}; weights must be above 0")
    places = [source.place for source in sources]
    twice = next((source for source in sources if places.count(source.place) > 1), None)
    if twice:
        raise DataError(f"{twice.path} is given twice; name every source once")
    return sources


def names_of(sources: tuple[Source, ...]) -> tuple[str, ...]:
    """A short name of each source, different from all others: as much of the path's end as that takes."""
    full = ["/".join(filter(None, (s.path.removeprefix(HUB), s.subset, s.split))) for s in sources]
    if len(set(full)) < len(full):  # hub:a/b and the directory a/b
        full = [f"{number}/{name}" for number, name in enumerate(full, start=1)]
    parts = [name.split("/") for name in full]
    depth = 1
    while len({tuple(p[-depth:]) for p in parts}) < len(parts):
        depth += 1
    return tuple("/".join(p[-depth:]) for p in parts)


def kind_of(file: Path) -> str:
    """The suffix that tells what a file holds, whatever it is compressed with."""
    return Path(file.stem).suffix if file.suffix in (".gz", ".zst") else file.suffix


def hub_commit(source: Source) -> str:
    """The commit that the revision means now; the hub is not asked about a commit. Raises DataError."""
    if source.revision and re.fullmatch(r"[0-9a-f]{40}", source.revision):
        return source.revision
    hub: Any = optional("huggingface_hub", f"{source.path} is on the hub")
    try:
        return str(hub.dataset_info(source.path.removeprefix(HUB), revision=source.revision).sha)
    except (OSError, ValueError, httpx2.HTTPError) as error:
        raise DataError(
            f"{source.path} cannot be reached on the hub: {short(error)}; check name and network, or download it and "
            "give the directory"
        ) from None


def short(error: BaseException) -> str:
    """The first line of what a library says, which is often a page."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
