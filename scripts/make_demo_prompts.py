"""Writes the prompts of the demo data: JSON lines of short user messages, deterministic by seed.

    python scripts/make_demo_prompts.py --out prompts.jsonl --num 4000 --seed 0

Every prompt is unique, and the kinds are interleaved, so that any prefix has the shares of `WEIGHTS` and a longer file
starts with the shorter one.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path

from demo_prompts import coding, everyday, knowledge, rewriting, word_problems

WEIGHTS = {  # per cent
    "python-complete": 35,
    "python-write": 10,
    "math": 12,
    "explain": 10,
    "list": 8,
    "rewrite": 4,
    "summarize": 4,
    "how-to": 7,
    "compare": 5,
    "message": 5,
}
STREAMS: dict[str, Callable[[random.Random], Iterator[str]]] = {
    "python-complete": coding.complete,
    "python-write": coding.write,
    "math": word_problems.problems,
    "explain": knowledge.explain,
    "list": knowledge.listing,
    "rewrite": rewriting.rewrite,
    "summarize": rewriting.summarize,
    "how-to": everyday.how_to,
    "compare": knowledge.compare,
    "message": everyday.message,
}


def generate(num: int, seed: int = 0) -> list[dict[str, object]]:
    """`num` unique prompts as JSON-ready records. Raises ValueError when a kind cannot give that many."""
    streams = {kind: unique(stream(random.Random(f"{seed}/{kind}"))) for kind, stream in STREAMS.items()}
    records = []
    for kind in interleaved(num):
        prompt = next(streams[kind], None)
        if prompt is None:
            raise ValueError(f"--num is {num}, but kind {kind} has too few prompts; lower --num, or add templates")
        records.append(record_of(kind, prompt))
    return records


def interleaved(num: int) -> Iterator[str]:
    """The kind of each prompt: always the one that lags furthest behind its share."""
    total = sum(WEIGHTS.values())
    counts = dict.fromkeys(WEIGHTS, 0)
    for position in range(1, num + 1):
        kind = max(WEIGHTS, key=lambda name: WEIGHTS[name] * position - counts[name] * total)
        counts[kind] += 1
        yield kind


def unique(prompts: Iterator[str]) -> Iterator[str]:
    """Each prompt once. Ends when 1000 candidates in a row were seen before, so endless streams are fine."""
    seen: set[str] = set()
    num_repeats = 0
    for prompt in prompts:
        num_repeats = num_repeats + 1 if prompt in seen else 0
        if num_repeats == 1000:
            return
        if prompt not in seen:
            seen.add(prompt)
            yield prompt


def record_of(kind: str, prompt: str) -> dict[str, object]:
    digest = hashlib.sha256(prompt.encode()).hexdigest()[:12]
    return {"id": f"{kind}-{digest}", "kind": kind, "messages": [{"role": "user", "content": prompt}]}


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the prompts of the demo data.")
    parser.add_argument("--out", type=Path, required=True, help="JSON lines file to write")
    parser.add_argument("--num", type=int, default=4000, help="number of prompts")
    parser.add_argument("--seed", type=int, default=0, help="another seed gives other prompts")
    options = parser.parse_args()
    lines = [json.dumps(record, ensure_ascii=False) for record in generate(options.num, options.seed)]
    options.out.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


if __name__ == "__main__":
    main()
