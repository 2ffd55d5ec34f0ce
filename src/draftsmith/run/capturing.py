"""capture(): hidden states of all training samples on disk, ahead of training."""

from __future__ import annotations

import tempfile
from pathlib import Path

from draftsmith.config import RunConfig
from draftsmith.observe import Progress
from draftsmith.run.opening import features_on_disk, open_store, place, set_up
from draftsmith.target import load_target, load_tokenizer


def capture(config: RunConfig) -> str:
    """Compute what is missing of the hidden states that such a training would keep; says what is there.

    With target.cache=first-epoch in the batches of the first epoch, otherwise in batches of their own; on a processor
    both give the same bits.
    """
    config = set_up(config)
    with tempfile.TemporaryDirectory() as aside:
        with Progress(f"loading {config.target.model} and its conversations"):
            target = load_target(config.target, device=place(config).drafter_device)
            store = open_store(config, load_tokenizer(config.target), Path(aside))
        made = features_on_disk(config, store, target, ahead=True)
    assert made is not None, "ahead of training they are kept whatever the configuration says"
    size = made.num_tokens * target.feature_size * target.dtype.itemsize
    return (
        f"{made.directory}: hidden states of {made.num_tokens:,} tokens, {size / 1e9:.2f} GB, "
        f"{made.num_computed:,} of them computed now"
    )
