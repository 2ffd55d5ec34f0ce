"""What can be known before training: the plan, and the settings as resolved."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from draftsmith.config import BatchingConfig, RunConfig
from draftsmith.data import TokenStore
from draftsmith.plan import (
    POLICIES,
    PlanSettings,
    parse_counts,
    plan_report,
    read_lengths,
    write_plot,
)
from draftsmith.run.directory import as_toml
from draftsmith.run.opening import check_something_is_left, open_store, plan_epoch, set_up
from draftsmith.target import load_tokenizer

ORDER_POLICIES = tuple(POLICIES)


def plan(
    settings: BatchingConfig,
    *,
    source: Path | None = None,
    counts: str | None = None,
    as_json: bool = False,
    plot_path: Path | None = None,
    **choices: Any,
) -> str:
    """Report on the plan of an epoch over a token store, a file of lengths, or counts of batches per bucket."""
    lengths = None
    if source is not None:
        store = TokenStore.open(source) if source.is_dir() else None
        lengths = read_lengths(source) if store is None else store.lengths[store.train_indices]
    report = plan_report(
        lengths=lengths,
        counts=None if counts is None else parse_counts(counts),
        settings=PlanSettings(**settings.model_dump()),
        **choices,
    )
    if plot_path is not None:
        write_plot(report, plot_path)
    return json.dumps(report.record) if as_json else report.text


def dry_run(config: RunConfig) -> str:
    """The settings as resolved and the audit of the first epoch's plan, without loading any weights."""
    config = set_up(config)
    with tempfile.TemporaryDirectory() as directory:
        store = open_store(config, load_tokenizer(config.target), Path(directory))
        plan = plan_epoch(config, store, epoch=0)
        check_something_is_left(config, store, plan)
        settings = plan.settings
        report = plan_report(lengths=store.lengths[store.train_indices], settings=settings, seed=config.seed)
    return f"{as_toml(config)}\n{report.text}"
