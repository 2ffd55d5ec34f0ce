"""verify(): every reader that is installed says what it finds in an export; one that is not is said, never counted."""

from __future__ import annotations

import dataclasses
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from draftsmith import __version__
from draftsmith.config import TargetConfig
from draftsmith.drafter import Drafter
from draftsmith.errors import ConfigError, EngineError, EngineMissing
from draftsmith.evaluation import Decoded, chat_prompt, check_fit, speculate, walk
from draftsmith.export import (
    EMBEDDING,
    HEAD,
    format_of,
    read_drafter,
    target_on_card,
)
from draftsmith.export.foreign_reader import digest
from draftsmith.export.llama_server import LlamaServer, Served, llama_server, pooled_length
from draftsmith.export.readers import READS, Case, Question, Reading, installed_engines, read_with
from draftsmith.observe import Progress
from draftsmith.run.exporting import export_with_target
from draftsmith.streams import num_cores
from draftsmith.target import Target, builtin_gguf, load_target, load_tokenizer, resolve_target

QUESTIONS = (
    "What is the capital of France?",
    "Name three fruits.",
    "Write a sentence about a dog.",
    "Count from one to five.",
)
SERVED_WITHIN = 0.03  # share by which a server's acceptance may differ from ours on its own tokens


@dataclass(frozen=True)
class Verdict:
    """What one reader found; a check is None where it was not asked. Only `passed` counts as proof."""

    reader: str
    status: Literal["passed", "failed", "skipped"]
    detail: str
    version: str = ""
    loads: bool | None = None
    same_tensors: bool | None = None
    same_drafts: bool | None = None
    same_acceptance: bool | None = None


@dataclass(frozen=True)
class Reference:
    """The export read and run by our own code, in fp32."""

    directory: Path
    format: str
    drafter: Drafter
    target: Target
    tokenizer: Any
    question: Question
    drafts: list[int]
    answers: list[Decoded]
    digests: dict[str, str]


def verify(
    directory: Path,
    *,
    target: str | None = None,
    target_gguf: Path | None = None,
    pythons: Sequence[Path] = (),
    max_new_tokens: int = 32,
) -> list[Verdict]:
    """One verdict per reader. Raises if our own reader refuses the export, or target and drafter do not fit."""
    if target_gguf is not None and not target_gguf.is_file():
        raise ConfigError(f"--target-gguf {target_gguf} is no file; give the target as llama-server loads it")
    with Progress(f"reading {directory}"):
        reference = _reference(directory, target or target_on_card(directory), max_new_tokens)
    length = sum(sum(a.committed) for a in reference.answers) / sum(len(a.committed) for a in reference.answers)
    verdicts = [
        Verdict(
            "draftsmith",
            "passed",
            f"{length:.2f} tokens per target forward on {len(reference.answers)} prompts",
            __version__,
            loads=True,
            same_tensors=True,
        )
    ]
    with tempfile.TemporaryDirectory(prefix="draftsmith-verify-") as scratch:
        for engine, python, version in _engines(pythons):
            with Progress(f"asking {engine}"):
                verdicts.append(_ask(engine, python, version, reference, Path(scratch)))
        with Progress("asking llama-server"):
            verdicts.append(_ask_llama_server(reference, target_gguf))
    return verdicts


def failures(verdicts: Sequence[Verdict]) -> list[str]:
    return [f"{v.reader}: {v.detail}" for v in verdicts if v.status == "failed"]


def as_json(verdicts: Sequence[Verdict]) -> str:
    return json.dumps([dataclasses.asdict(verdict) for verdict in verdicts], indent=2)


def _reference(directory: Path, target_name: str | None, max_new_tokens: int) -> Reference:
    drafter = read_drafter(directory)
    shape = drafter.shape
    if target_name is None:
        raise ConfigError(f"{directory} has no README.md that names its target; give it with --target")
    config = TargetConfig(model=target_name, dtype="float32", layer_ids=shape.target_layer_ids)
    target, tokenizer = load_target(config), load_tokenizer(config)
    check_fit(drafter, target)
    digests = {name: digest(tensor) for name, tensor in drafter.state_dict().items()}
    drafter = drafter.float()
    prompts = [chat_prompt(tokenizer, [{"role": "user", "content": text}]) for text in QUESTIONS]
    case, drafts = _case(drafter, target, prompts[0])
    question = Question(
        target=resolve_target(target_name),
        case=case,
        prompts=prompts,
        max_new_tokens=max_new_tokens,
        eos_token_ids=sorted(target.eos_token_ids),
        block_size=shape.block_size,
        num_threads=num_cores(),
    )
    answers = speculate(drafter, target, prompts, max_new_tokens=max_new_tokens)
    return Reference(directory, format_of(directory), drafter, target, tokenizer, question, drafts, answers, digests)


@torch.no_grad()
def _case(drafter: Drafter, target: Target, prompt: Sequence[int]) -> tuple[Case, list[int]]:
    """The block that follows a prompt, and what our own network drafts for it."""
    shape, ids = drafter.shape, torch.tensor([prompt])
    block = torch.full((1, shape.block_size), shape.mask_token_id)
    block[0, 0] = prompt[-1]
    positions = torch.arange(len(prompt) + shape.block_size)[None]
    hidden, embedding = target.features(ids), target.embedding(block).detach().clone()
    context = drafter.context(hidden, positions[:, : len(prompt)])
    states = drafter(embedding, positions[:, len(prompt) :], context, None)
    return Case(hidden, embedding, positions), _drafts(target, states)


def _drafts(target: Target, states: torch.Tensor) -> list[int]:
    return target.head(states[0, 1:].to(target.dtype)).argmax(-1).tolist()  # type: ignore[no-any-return]


def _engines(pythons: Sequence[Path]) -> Iterator[tuple[str, Path | None, str]]:
    """Each engine with the first interpreter that has it."""
    available = [(python, installed_engines(python)) for python in (Path(sys.executable), *pythons)]
    for engine in READS:
        python, found = next(((p, found) for p, found in available if engine in found), (None, {}))
        yield engine, python, found.get(engine, "")


def _ask(engine: str, python: Path | None, version: str, reference: Reference, scratch: Path) -> Verdict:
    if python is None:
        return Verdict(engine, "skipped", "not installed; another environment can be given with --python")
    if reference.format == "gguf":
        return Verdict(engine, "skipped", "reads no GGUF; verify the export of another format", version)
    try:
        directory, made = _in_format(READS[engine], reference, scratch)
        reading = read_with(engine, python, directory, reference.question)
    except EngineError as error:
        return Verdict(engine, "failed", str(error), version, loads=False)
    return _judge(engine, version, reading, reference, made)


def _in_format(format: str, reference: Reference, scratch: Path) -> tuple[Path, str]:
    """The export itself where the engine reads its format, else the same drafter written in that format."""
    if format == reference.format:
        return reference.directory, "read as it is"
    destination = scratch / format
    if not destination.exists():
        name = reference.question.target
        export_with_target(reference.drafter, destination, reference.target, name=name, format=format)
    return destination, f"read as {format}"


def _judge(engine: str, version: str, reading: Reading, reference: Reference, made: str) -> Verdict:
    found, expected = reading.tensors, dict(reference.digests)
    for name, module in ((EMBEDDING, reference.target.embedding), (HEAD, reference.target.head)):
        if name in found:  # the target's own, where a format carries them
            expected[name] = digest(module.weight)
    wrong = sorted(name for name in found.keys() | expected.keys() if found.get(name) != expected.get(name))
    wrong += [f"{name} is missing" for name in reading.missing]
    details = [f"tensors differ: {', '.join(wrong[:3])}"] if wrong else [made]
    wrong += _misread(reading, reference, details)
    drafts = None if reading.states is None else _drafts(reference.target, reading.states) == reference.drafts
    if drafts is False:
        details.append("drafts other tokens for the same hidden states")
    acceptance = None
    if reading.answers is not None:
        ours = [(a.tokens, a.committed[:-1]) for a in reference.answers]
        theirs = [(list(a["tokens"]), list(a["committed"])[:-1]) for a in reading.answers]
        acceptance = ours == theirs  # the last count is cut at the limit, by each in its own way
        num_equal = sum(a == b for a, b in zip(ours, theirs, strict=True))
        details.append(f"{num_equal} of {len(ours)} answers with equal tokens and counts")
    failed = bool(wrong) or drafts is False or acceptance is False
    return Verdict(
        engine, "failed" if failed else "passed", "; ".join(details), version, True, not wrong, drafts, acceptance
    )


def _misread(reading: Reading, reference: Reference, details: list[str]) -> list[str]:
    """What a loader that cannot draft here says of the rest of the configuration."""
    expected = {
        "causal": [False] * reference.drafter.shape.num_hidden_layers,
        "target_layers": [i + 1 for i in reference.drafter.shape.target_layer_ids],
    }
    wrong = [name for name, value in reading.more.items() if value != expected[name]]
    details += [f"{name} is {reading.more[name]}, not {expected[name]}" for name in wrong]
    return wrong


def _ask_llama_server(reference: Reference, target_gguf: Path | None) -> Verdict:
    reader = "llama-server"
    try:
        from draftsmith.export.gguf_tokenizer import tokenizer_of_gguf
        from draftsmith.export.llama_cpp import check_target_gguf, export_gguf, gguf_file
    except ImportError:
        return Verdict(reader, "skipped", "the package gguf is not installed")
    source = target_gguf or builtin_gguf(reference.target.name)
    if source is None:
        return Verdict(reader, "skipped", "needs the target as GGUF; give it with --target-gguf")
    check_target_gguf(source, reference.drafter.shape)
    tokenizer = tokenizer_of_gguf(source)
    tokenizer.check_same(reference.tokenizer, reference.target.name)
    with tempfile.TemporaryDirectory(prefix="draftsmith-verify-") as scratch:
        directory = reference.directory
        if reference.format != "gguf":
            directory = export_gguf(reference.drafter, Path(scratch) / "gguf", card="", tokenizer=tokenizer)
        try:
            with llama_server(
                source, drafter=gguf_file(directory), num_draft=reference.question.block_size - 1
            ) as server:
                drafted = _answers(server, reference.question)
            with llama_server(source) as server:
                plain = _answers(server, reference.question)
        except EngineMissing as error:
            return Verdict(reader, "skipped", str(error))
        except EngineError as error:
            return Verdict(reader, "failed", str(error), loads=False)
    return _judge_served(drafted, plain, reference)


def _answers(server: LlamaServer, question: Question) -> list[Served]:
    return [server.complete(prompt, max_new_tokens=question.max_new_tokens) for prompt in question.prompts]


def _judge_served(drafted: Sequence[Served], plain: Sequence[Served], reference: Reference) -> Verdict:
    walked = [
        count
        for prompt, answer in zip(reference.question.prompts, drafted, strict=True)
        for count in walk(reference.drafter, reference.target, prompt, answer.tokens)
    ]
    served, ours = pooled_length(drafted), sum(walked) / max(len(walked), 1)
    close = abs(served - ours) <= SERVED_WITHIN * ours
    num_equal = sum(a.tokens == b.tokens for a, b in zip(drafted, plain, strict=True))
    detail = (
        f"{served:.2f} tokens per target forward served, {ours:.2f} by our walk over its tokens; "
        f"{num_equal} of {len(drafted)} answers as without a drafter"
    )
    passed = close and num_equal == len(drafted)
    return Verdict("llama-server", "passed" if passed else "failed", detail, loads=True, same_acceptance=close)
