"""A few answers of a measurement as text, token by token: examples.json, which the report colours."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from draftsmith.evaluation import Decoded
from draftsmith.run.directory import write_json

EXAMPLES = "examples.json"
NUM_PER_SET = 2

Kept = dict[str, list[tuple[Sequence[int], Decoded]]]


def keep_some(kept: Kept, name: str, prompts: Sequence[Sequence[int]], answers: Sequence[Decoded]) -> None:
    """Keep the first answers of a set with their prompts."""
    kept[name] = list(zip(prompts, answers, strict=True))[:NUM_PER_SET]


def write_examples(run: Path, tokenizer: Any, kept: Kept) -> None:
    """Write what was kept as text, with what each verification committed."""
    examples = [
        {
            "set": name,
            "prompt": tokenizer.decode(list(prompt), skip_special_tokens=True),
            "pieces": pieces(tokenizer, answer.tokens),
            "committed": answer.committed,
        }
        for name, mine in kept.items()
        for prompt, answer in mine
    ]
    write_json(run / EXAMPLES, {"examples": examples})


def pieces(tokenizer: Any, tokens: Sequence[int]) -> list[str]:
    """Text that each token adds; a character of several tokens stands with its last one. Together they are the text."""
    texts, shown = [], ""
    for count in range(1, len(tokens) + 1):
        so_far = tokenizer.decode(list(tokens[:count]))
        # A cut character reads as U+FFFD until its last token has come.
        whole = so_far if count == len(tokens) else so_far.rstrip("\ufffd")
        texts.append(whole[len(shown) :] if whole.startswith(shown) else "")
        shown = whole if whole.startswith(shown) else shown
    return texts
