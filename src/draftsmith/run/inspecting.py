"""inspect(): what a store or a file of conversations will teach, before any weight is loaded."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from rich.console import Console

from draftsmith import data
from draftsmith.config import BatchingConfig, DataConfig, TargetConfig, parse_target
from draftsmith.data import TokenStore
from draftsmith.errors import ConfigError, DataError, ModelError
from draftsmith.files import atomic_write
from draftsmith.observe import Progress
from draftsmith.plan import PlanSettings, build_plan
from draftsmith.run.opening import make_store
from draftsmith.target import load_tokenizer


def inspect(
    source: str,
    target: TargetConfig | None,
    *,
    batching: BatchingConfig,
    settings: DataConfig,
    num_rows: int,
) -> data.Inspection:
    """Look at a token store, or at what prepare would make of conversations with these settings."""
    tokenizer = None if target is None else load_tokenizer(target)
    with _opened(source, tokenizer, settings) as store, Progress(f"looking at {source}") as progress:
        tokenizer = _own_tokenizer(store) if tokenizer is None else tokenizer
        made_with = store.meta["made_from"]["template_kwargs"]
        return data.inspect_store(
            store,
            None if tokenizer is None else data.ChatTemplate(tokenizer, made_with),
            source=source,
            edges=_edges(store, batching),
            num_rows=num_rows,
            progress=lambda done: progress.show(lambda: f"{done:,} of {len(store):,} samples"),
        )


def show(found: data.Inspection, *, as_json: bool, page: Path | None) -> None:
    """Print the report, or its JSON, and write the page. Raises DataError if the store is refused."""
    if page is not None:
        atomic_write(page, data.inspection_page(found))
    if as_json:
        print(json.dumps(found.to_json(), ensure_ascii=False))
    else:
        data.print_inspection(found, Console(highlight=False))
    if found.problems:
        raise DataError("; ".join(f"{problem.kind}: {problem.detail}" for problem in found.problems))


@contextmanager
def _opened(source: str, tokenizer: object, settings: DataConfig) -> Iterator[TokenStore]:
    if (Path(source) / "meta.json").is_file():
        store = TokenStore.open(Path(source))
        store.verify()
        yield store
        return
    if tokenizer is None:
        raise ConfigError(f"{source} is no token store; to inspect conversations, say for which model: --target")
    with tempfile.TemporaryDirectory() as aside:
        with Progress(f"reading {source}") as progress:
            store = make_store(
                [source], Path(aside) / "store", tokenizer, settings, seed=0, strict=False, progress=progress
            )
        yield store


def _own_tokenizer(store: TokenStore) -> Any:
    """The tokenizer that the store was made with, if it is still where it was; else None."""
    if not store.tokenizer_name:
        return None
    with suppress(ModelError):
        tokenizer = load_tokenizer(parse_target(model=store.tokenizer_name))
        return tokenizer if data.tokenizer_problem(store, tokenizer) is None else None
    return None


def _edges(store: TokenStore, batching: BatchingConfig) -> tuple[int, ...]:
    return build_plan(store.lengths[store.train_indices], PlanSettings(**batching.model_dump()), seed=0).edges
