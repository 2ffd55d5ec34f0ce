"""Does the diagnosis name the order of real runs? Run: python benchmarks/diagnosis.py [--steps N] [--out FILE]

Trains the tiny target once with each order, everything else alike, and prints what the curve says of itself.
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
from draftsmith.run.training import train

CONFIG = Path(__file__).resolve().parents[1] / "configs" / "tiny-cpu.toml"
ORDERS = ("quota", "shuffle", "diversity-first", "sequential")
SETTINGS = ("batching.max_tokens=256", "batching.num_buckets=5", "eval.num_prompts=0", "eval.num_timed=0")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--keep", type=Path, help="directory to leave the runs in")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        runs = options.keep or Path(directory)
        found = {order: diagnosed(runs / order, order, options.steps, options.seed) for order in ORDERS}
    for order, said in found.items():
        print(f"{order}: {', '.join(said['findings']) or 'nothing'}\n  {said['paragraph']}\n")
    record = {"orders": found, "steps": options.steps, "seed": options.seed, "commit": commit()}
    record["environment"] = describe_environment()
    if options.out:
        options.out.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def diagnosed(run: Path, order: str, steps: int, seed: int) -> dict[str, Any]:
    overrides = [*SETTINGS, f"batching.order={order}", f"train.max_steps={steps}", f"seed={seed}", f"run.dir={run}"]
    train(load_config(CONFIG, overrides), name=order)
    found = diagnosis_of(read_run(run))
    effects = np.round(found.parts.effects, 3).tolist() if found.parts is not None else []
    return {"findings": list(found.codes), "paragraph": paragraph(found), "effects": effects}


def commit() -> str:
    done = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


if __name__ == "__main__":
    main()
