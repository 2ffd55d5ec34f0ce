"""Short questions from a small generator, the same for the same seed: the prompts of configs/tiny-cpu.toml.

python scripts/make_tiny_prompts.py --num 400 --out prompts.jsonl
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable
from pathlib import Path

from draftsmith.data.readers import content_id
from draftsmith.records import Conversation

WORDS = (
    *("apple", "bread", "chair", "cloud", "dance", "eagle", "field", "glass", "house", "island", "jelly", "knife"),
    *("lemon", "music", "night", "ocean", "paper", "queen", "river", "stone", "table", "uncle", "valley", "water"),
)


def synthetic_prompts(num: int, seed: int) -> list[Conversation]:
    """`num` different conversations of one user turn each, 10 to 60 ASCII characters. The first n do not depend on num.

    Answers are not part of them: a target writes those.
    """
    draw = random.Random(f"synthetic-prompts-{seed}")
    texts: dict[str, None] = {}
    while len(texts) < num:
        texts[draw.choice(GAMES)(draw)] = None
    return [_conversation(text) for text in texts]


def _conversation(text: str) -> Conversation:
    messages = ({"role": "user", "content": text},)
    return Conversation(id=content_id(messages), messages=messages)


def _sum(draw: random.Random) -> str:
    return f"What is {draw.randrange(100)} plus {draw.randrange(100)}?"


def _product(draw: random.Random) -> str:
    return f"Multiply {draw.randrange(2, 20)} by {draw.randrange(2, 20)}."


def _count_on(draw: random.Random) -> str:
    start, step = draw.randrange(50), draw.randrange(1, 10)
    return f"Continue: {start}, {start + step}, {start + 2 * step}"


def _repeat(draw: random.Random) -> str:
    return f"Say {draw.choice(WORDS)} {draw.randrange(2, 9)} times."


def _spell(draw: random.Random) -> str:
    return f"Spell the words {draw.choice(WORDS)} and {draw.choice(WORDS)}."


def _reverse(draw: random.Random) -> str:
    return f"Reverse: {draw.choice(WORDS)} {draw.choice(WORDS)} {draw.choice(WORDS)}"


def _sort(draw: random.Random) -> str:
    return "Sort: " + ", ".join(draw.sample(WORDS, 4))


GAMES: tuple[Callable[[random.Random], str], ...] = (_sum, _product, _count_on, _repeat, _spell, _reverse, _sort)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    rows = [{"id": row.id, "messages": list(row.messages)} for row in synthetic_prompts(arguments.num, arguments.seed)]
    arguments.out.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


if __name__ == "__main__":
    main()
