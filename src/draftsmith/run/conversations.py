"""Conversations in: prepare them as tokens, let the target answer them."""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from pathlib import Path

from draftsmith import data
from draftsmith.config import DataConfig, TargetConfig
from draftsmith.data import TokenStore
from draftsmith.errors import Interrupted
from draftsmith.keyed import keyed_generator
from draftsmith.observe import Progress
from draftsmith.records import Conversation
from draftsmith.run.opening import make_store, settle_target
from draftsmith.target import (
    Sampling,
    generate,
    load_target,
    load_tokenizer,
    resolve_device,
)

GOES_ON = "the same command goes on from here"
TemplateArguments = dict[str, bool | int | str]


def prepare(
    sources: Sequence[str],
    destination: Path,
    target: TargetConfig,
    settings: DataConfig,
    *,
    seed: int,
    strict: bool,
) -> TokenStore:
    """Sources -> token store at `destination`, as a run would make it. Stopped, it goes on later."""
    tokenizer = load_tokenizer(target)
    try:
        with Progress(f"preparing {', '.join(sources)}") as progress:
            return make_store(sources, destination, tokenizer, settings, seed=seed, strict=strict, progress=progress)
    except KeyboardInterrupt:
        raise Interrupted(signal.SIGINT, GOES_ON) from None
    except Interrupted as stop:
        raise Interrupted(stop.exit_code - 128, GOES_ON) from None


def regenerate(
    source: Path,
    destination: Path,
    target: TargetConfig,
    *,
    device: str,
    template: TemplateArguments,
    max_new_tokens: int,
    temperature: float,
    batch_size: int,
    seed: int,
) -> data.Regenerated:
    """The target answers every user turn of `source` into `destination`."""
    rows = [row for _, row in data.read_conversations(source, strict=True)]
    conversations = [row for row in rows if isinstance(row, Conversation)]
    device = resolve_device(device)
    target = settle_target(target, device)
    with Progress(f"loading {target.model}"):
        tokenizer, model = load_tokenizer(target), load_target(target, device=device)
    made_with = {**target.model_dump(include={"model", "revision", "dtype"}), "max_new_tokens": max_new_tokens}
    start = time.monotonic()

    def answer(prompts: Sequence[Sequence[int]], names: Sequence[str]) -> list[list[int]]:
        seeds = [int(keyed_generator(seed, "answer", name).integers(2**62)) for name in names]
        return generate(model, prompts, max_new_tokens=max_new_tokens, sampling=Sampling(temperature), seeds=seeds)

    with Progress(f"answering {source}") as progress:
        return data.regenerate(
            conversations,
            destination,
            tokenizer,
            answer,
            eos_token_ids=model.eos_token_ids,
            batch_size=batch_size,
            made_with={**made_with, "temperature": temperature, "seed": seed},
            template_kwargs=template,
            progress=lambda rows, tokens: progress.show(
                f"{rows:,} of {len(conversations):,}, {tokens / (time.monotonic() - start):.0f} tokens/s"
            ),
        )
