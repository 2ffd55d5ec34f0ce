"""Answers made in this process: batches of similar length against one conversation at a time, the same model and cores.

    python benchmarks/regenerate.py --out regenerate.json [--rows 96] [--alone 12] [--batch-size 32]

Both ways are `data.in_batches` with greedy decoding; one at a time is a batch of one. The rows answered alone are
spread over all rows by length. Prints a table and writes JSON with hardware and commit.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import time
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from draftsmith import data
from draftsmith.config import TargetConfig
from draftsmith.data.answers import Asked, with_keys
from draftsmith.observe import describe_environment
from draftsmith.records import Conversation
from draftsmith.run.opening import SHIPPED_CONVERSATIONS
from draftsmith.target import Target, generate, load_target, load_tokenizer

HERE = Path(__file__).parent
FACTOR = 5.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
    parser.add_argument("--target", default="smollm2-135m")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--rows", type=int, default=96, help="conversations answered in batches")
    parser.add_argument("--alone", type=int, default=12, help="of these, answered one at a time as well")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    target = load_target(TargetConfig(model=arguments.target, dtype=arguments.dtype))
    tokenizer = load_tokenizer(TargetConfig(model=arguments.target, dtype=arguments.dtype))
    rows = sorted(some_rows(arguments.rows), key=lambda row: len(str(row.turns)))
    few = rows[:: max(1, len(rows) // arguments.alone)][: arguments.alone]
    measure(target, tokenizer, few[:1], 1, arguments.max_new_tokens)  # the first forward is slower
    alone = measure(target, tokenizer, few, 1, arguments.max_new_tokens)
    together = measure(target, tokenizer, rows, arguments.batch_size, arguments.max_new_tokens)
    factor = together["tokens_per_s"] / alone["tokens_per_s"]
    settings = {name: value for name, value in vars(arguments).items() if name != "out"}
    known: dict[str, Any] = {"settings": settings, "alone": alone, "together": together, "factor": round(factor, 2)}
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=HERE, capture_output=True, text=True)
    known |= {"commit": commit.stdout.strip(), "environment": describe_environment()}
    arguments.out.write_text(json.dumps(known, indent=2) + "\n")
    for name, found in (("one at a time", alone), (f"batches of {arguments.batch_size}", together)):
        print(f"{name:16} {found['rows']:4} rows {found['tokens']:6} tokens {found['tokens_per_s']:8.1f} tokens/s")
    print(f"{factor:.1f} times as many tokens per second; {'reached' if factor >= FACTOR else 'NOT REACHED'}: {FACTOR}")


def some_rows(number: int) -> list[Asked]:
    found = islice(data.read_conversations(SHIPPED_CONVERSATIONS["demo"], strict=True), number)
    return with_keys([(line, row) for line, row in found if isinstance(row, Conversation)])


def measure(target: Target, tokenizer: Any, rows: Sequence[Asked], size: int, max_new_tokens: int) -> dict[str, Any]:
    def answer(prompts: Sequence[Sequence[int]], _names: Sequence[str]) -> list[list[int]]:
        return generate(target, prompts, max_new_tokens=max_new_tokens)

    answer_all = data.in_batches(tokenizer, answer, eos_token_ids=target.eos_token_ids, batch_size=size)
    start = time.perf_counter()
    num_tokens = sum(row.num_tokens for row in answer_all(rows))
    seconds = time.perf_counter() - start
    return {"rows": len(rows), "tokens": num_tokens, "seconds": round(seconds, 2), "tokens_per_s": num_tokens / seconds}


if __name__ == "__main__":
    main()
