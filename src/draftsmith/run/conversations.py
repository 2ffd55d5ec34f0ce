"""Conversations in: prepare them as tokens, let the target answer them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from draftsmith import data
from draftsmith.config import DataConfig, TargetConfig
from draftsmith.data import AnswerAll, Sampling, ServerSettings, TokenStore
from draftsmith.keyed import keyed_generator
from draftsmith.observe import Progress
from draftsmith.run.opening import make_store, settle_target
from draftsmith.target import (
    generate,
    load_target,
    load_tokenizer,
    resolve_device,
)

__all__ = ["Sampling", "ServerSettings", "TemplateArguments", "prepare", "regenerate", "regenerate_through"]

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
    """Sources -> token store at `destination`, as a run with these settings would make it."""
    with Progress(f"preparing {', '.join(sources)}") as progress:
        return make_store(
            sources, destination, load_tokenizer(target), settings, seed=seed, strict=strict, progress=progress
        )


def regenerate(
    source: Path,
    destination: Path,
    target: TargetConfig,
    *,
    device: str,
    sampling: Sampling,
    batch_size: int,
    strict: bool,
) -> data.Regenerated:
    """The target, loaded here, answers every user turn of `source` into `destination`."""
    device = resolve_device(device)
    target = settle_target(target, device)
    with Progress(f"loading {target.model}"):
        tokenizer, model = load_tokenizer(target), load_target(target, device=device)

    def answer(prompts: Sequence[Sequence[int]], names: Sequence[str]) -> list[list[int]]:
        seeds = [int(keyed_generator(sampling.seed, "answer", name).integers(2**62)) for name in names]
        limit = sampling.max_new_tokens
        return generate(model, prompts, max_new_tokens=limit, temperature=sampling.temperature, seeds=seeds)

    answer_all = data.in_batches(
        tokenizer,
        answer,
        eos_token_ids=model.eos_token_ids,
        batch_size=batch_size,
        max_prompt=model.max_positions - sampling.max_new_tokens,
        template_kwargs=sampling.template_kwargs,
    )
    made_with = {**target.model_dump(include={"model", "revision", "dtype"}), **_recorded(sampling)}
    return _answered(source, destination, answer_all, made_with, strict=strict)


def regenerate_through(
    source: Path, destination: Path, settings: ServerSettings, *, sampling: Sampling, strict: bool
) -> data.Regenerated:
    """A server answers every user turn of `source` into `destination`."""
    made_with = {"through": "server", "model": settings.model, **_recorded(sampling)}
    with data.ChatServer(settings) as server:
        return _answered(source, destination, data.through_server(server, sampling), made_with, strict=strict)


def _recorded(sampling: Sampling) -> dict[str, Any]:
    """Everything but the target that decides what an answer says."""
    return {
        "max_new_tokens": sampling.max_new_tokens,
        "temperature": sampling.temperature,
        "seed": sampling.seed,
        "template": dict(sampling.template_kwargs),
    }


def _answered(
    source: Path, destination: Path, answer_all: AnswerAll, made_with: dict[str, Any], *, strict: bool
) -> data.Regenerated:
    start = time.monotonic()
    with Progress(f"answering {source}") as progress:
        return data.regenerate(
            data.read_conversations(source, strict=strict),
            destination,
            answer_all,
            made_with=made_with,
            strict=strict,
            progress=lambda rows, of, tokens: progress.show(
                f"{rows:,} of {of:,}, {tokens / (time.monotonic() - start):.0f} tokens/s"
            ),
        )
