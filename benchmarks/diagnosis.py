"""Does the diagnosis name the order of real runs? Run: python benchmarks/diagnosis.py [--steps N] [--out FILE]

Trains on the tiny target once with each order, everything else alike, and prints what the curve says of itself. Answers
are random letters, of a larger alphabet the longer they are: so the loss of a length bucket is about the logarithm of
its alphabet, and everything else about the curve is the order's doing.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from draftsmith.config import load_config
from draftsmith.observe import describe_environment
from draftsmith.report import read_run
from draftsmith.report.diagnosis.words import paragraph
from draftsmith.report.explain import diagnosis_of
from draftsmith.run.starting import train

CONFIG = Path(__file__).resolve().parents[1] / "configs" / "tiny-cpu.toml"
ORDERS = ("quota", "shuffle", "diversity-first", "sequential")
SETTINGS = (
    "batching.max_tokens=512",
    "batching.num_buckets=4",
    "data.holdout=0",
    "eval.num_prompts=0",
    "eval.num_timed=0",
)
# Rows, letters of an answer, its alphabet.
KINDS = ((90, 12, "ab"), (90, 36, "abcd"), (90, 66, "abcdefgh"), (90, 96, "abcdefghijklmnop"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--orders", nargs="+", default=ORDERS)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--keep", type=Path, help="directory to leave the runs in")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        runs, rows = options.keep or Path(directory), Path(directory) / "rows.jsonl"
        write_conversations(rows, options.seed)
        given = [*SETTINGS, f"data.conversations={rows}", f"train.max_steps={options.steps}", f"seed={options.seed}"]
        found = {order: diagnosed(runs / order, [*given, f"batching.order={order}"]) for order in options.orders}
    for order, said in found.items():
        print(f"{order}: {', '.join(said['findings']) or 'nothing'}\n  {said['paragraph']}\n")
    record = {"orders": found, "steps": options.steps, "seed": options.seed, "commit": commit()}
    record["environment"] = describe_environment()
    if options.out:
        options.out.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def write_conversations(path: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = []
    for num_rows, length, letters in KINDS:
        for number in range(num_rows):
            answer = "".join(rng.choice(list(letters), length))
            turns = [{"role": "user", "content": f"{length}"}, {"role": "assistant", "content": answer}]
            rows.append({"id": f"{length}-{number}", "messages": turns})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def diagnosed(run: Path, overrides: list[str]) -> dict[str, Any]:
    train(load_config(CONFIG, [*overrides, f"run.dir={run}"]), name=run.name)
    found = diagnosis_of(read_run(run))
    effects = np.round(found.parts.effects, 3).tolist() if found.parts is not None else []
    return {"findings": list(found.codes), "paragraph": paragraph(found), "effects": effects}


def commit() -> str:
    done = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


if __name__ == "__main__":
    main()
