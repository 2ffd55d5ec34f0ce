"""Conversations in: prepare them as tokens, let the target answer them."""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from draftsmith import data
from draftsmith.config import DataConfig, TargetConfig
from draftsmith.data import AnswerAll, AnswerSettings, ServerSettings, TokenStore
from draftsmith.errors import ConfigError, Interrupted
from draftsmith.keyed import keyed_generator
from draftsmith.observe import Progress
from draftsmith.run.opening import make_store, settle_target
from draftsmith.target import (
    Sampling,
    generate,
    load_target,
    load_tokenizer,
    resolve_device,
)

__all__ = ["AnswerSettings", "ServerSettings", "TemplateArguments", "prepare", "regenerate", "regenerate_through"]

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
    source: str,
    destination: Path,
    target: TargetConfig,
    *,
    device: str,
    settings: AnswerSettings,
    batch_size: int,
    strict: bool,
) -> data.Regenerated:
    """The target, loaded here, answers every user turn of `source` into `destination`."""
    device = resolve_device(device)
    target = settle_target(target, device)
    with Progress(f"loading {target.model}"):
        tokenizer, model = load_tokenizer(target), load_target(target, device=device)

    if settings.max_new_tokens >= model.max_length:
        raise ConfigError(
            f"--max-new-tokens is {settings.max_new_tokens}, but {target.model} takes {model.max_length} tokens in "
            "all, the question included; lower it"
        )

    def answer(prompts: Sequence[Sequence[int]], names: Sequence[str]) -> list[list[int]]:
        seeds = [int(keyed_generator(settings.seed, "answer", name).integers(2**62)) for name in names]
        sampling = Sampling(settings.temperature)
        return generate(model, prompts, max_new_tokens=settings.max_new_tokens, sampling=sampling, seeds=seeds)

    answer_all = data.in_batches(
        tokenizer,
        answer,
        eos_token_ids=model.eos_token_ids,
        batch_size=batch_size,
        max_prompt=model.max_length - settings.max_new_tokens,
        template_kwargs=settings.template_kwargs,
    )
    made_with = {**target.model_dump(include={"model", "revision", "dtype"}), **_recorded(settings)}
    return _answered(source, destination, answer_all, made_with, strict=strict)


def regenerate_through(
    source: str, destination: Path, server: ServerSettings, *, settings: AnswerSettings, strict: bool
) -> data.Regenerated:
    """A server answers every user turn of `source` into `destination`."""
    made_with = {"through": "server", "model": server.model, **_recorded(settings)}
    answer_all = data.through_server(data.ChatServer(server), settings)
    return _answered(source, destination, answer_all, made_with, strict=strict)


def _recorded(settings: AnswerSettings) -> dict[str, Any]:
    """Everything but the target that decides what an answer says."""
    return {
        "max_new_tokens": settings.max_new_tokens,
        "temperature": settings.temperature,
        "seed": settings.seed,
        "template": dict(settings.template_kwargs),
    }


def _answered(
    source: str, destination: Path, answer_all: AnswerAll, made_with: dict[str, Any], *, strict: bool
) -> data.Regenerated:
    start = time.monotonic()
    with Progress(f"answering {source}") as progress:
        return data.regenerate(
            data.read_conversations(data.parse_source(source), strict=strict),
            destination,
            answer_all,
            made_with=made_with,
            strict=strict,
            progress=lambda rows, of, tokens: progress.show(
                f"{rows:,} of {of:,}, {tokens / (time.monotonic() - start):.0f} tokens/s"
            ),
        )
