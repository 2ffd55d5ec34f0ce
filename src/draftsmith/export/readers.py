"""Other people's code asked what it reads in an export: each engine in a process of its own.

The process is foreign_reader.py. The interpreter may be another environment's, and may crash without harm.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from draftsmith.errors import EngineError
from draftsmith.flow import program

SCRIPT = Path(__file__).with_name("foreign_reader.py")
READS = {
    "transformers": "transformers",
    "z-lab": "hf",
    "speculators": "speculators",
    "vLLM": "hf",
    "vLLM from speculators": "speculators",
}
START_S, READ_S = 60.0, 1800.0


@dataclass(frozen=True)
class Case:
    """One block to draft, in fp32: hidden states [1, C, K*H] before it, embeddings [1, B, H], positions [1, C+B]."""

    hidden: torch.Tensor
    embedding: torch.Tensor
    positions: torch.Tensor


@dataclass(frozen=True)
class Question:
    """What every engine is asked: to draft one block, and to answer prompts greedily with the drafter."""

    target: str
    case: Case
    prompts: Sequence[Sequence[int]]
    max_new_tokens: int
    eos_token_ids: Sequence[int]
    block_size: int
    num_threads: int


@dataclass(frozen=True)
class Reading:
    """What an engine found. `states` [1, B, H] and `answers` are missing where it can only load."""

    tensors: Mapping[str, str]
    missing: Sequence[str] = ()
    unexpected: Sequence[str] = ()
    states: torch.Tensor | None = None
    answers: Sequence[Mapping[str, Sequence[int]]] | None = None
    more: Mapping[str, Any] = field(default_factory=dict)


def installed_engines(python: Path) -> dict[str, str]:
    """Engine -> version, for what this interpreter has. Raises EngineError if it does not run."""
    with tempfile.TemporaryDirectory(prefix="draftsmith-reader-") as scratch:
        try:
            printed = _run(python, [], Path(scratch) / "log", limit_s=START_S)
        except EngineError as error:
            raise EngineError(f"{python} cannot be asked for its engines: {error}") from None
    try:
        return dict(json.loads(printed.strip().splitlines()[-1]))
    except (ValueError, IndexError):
        raise EngineError(f"{python} says nothing of its engines: {printed[-200:]!r}") from None


def read_with(engine: str, python: Path, directory: Path, question: Question) -> Reading:
    """What `engine` reads in `directory`. Raises EngineError with its last words if it fails."""
    with tempfile.TemporaryDirectory(prefix="draftsmith-reader-") as name:
        scratch = Path(name)
        case = question.case
        save_file(
            {"hidden": case.hidden, "embedding": case.embedding, "positions": case.positions},
            scratch / "case.safetensors",
        )
        task = {
            "engine": engine,
            "export": str(directory.absolute()),
            "target": question.target,
            "case": str(scratch / "case.safetensors"),
            "prompts": [list(prompt) for prompt in question.prompts],
            "max_new_tokens": question.max_new_tokens,
            "eos_token_ids": list(question.eos_token_ids),
            "block_size": question.block_size,
            "num_threads": question.num_threads,
            "answer": str(scratch / "answer.json"),
        }
        (scratch / "task.json").write_text(json.dumps(task), encoding="utf-8")
        _run(python, [str(scratch / "task.json")], scratch / "log", limit_s=READ_S)
        found = json.loads((scratch / "answer.json").read_text(encoding="utf-8"))
        states = scratch / "answer.json.safetensors"
        return Reading(
            tensors=found.pop("tensors"),
            missing=found.pop("missing"),
            unexpected=found.pop("unexpected"),
            states=load_file(states)["states"] if states.exists() else None,
            answers=found.pop("answers", None),
            more=found,
        )


def _run(python: Path, arguments: Sequence[str], log: Path, *, limit_s: float) -> str:
    """What the script printed. It reaches no network: everything it needs is in files."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
    environment.pop("PYTHONPATH", None)  # another environment must not find our packages
    try:
        with program([str(python), str(SCRIPT), *arguments], log=log, environment=environment) as running:
            code = running.wait(limit_s)
            if code is None:
                raise EngineError(f"{python.name} was not done within {limit_s:.0f} s; last: {running.last_words(2)}")
            if code != 0:
                raise EngineError(f"ended with exit code {code}; last: {running.last_words(2)}")
            return running.printed()
    except FileNotFoundError as error:
        raise EngineError(f"there is no interpreter {error.filename}") from None
