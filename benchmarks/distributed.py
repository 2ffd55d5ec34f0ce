"""Several processes against one, on this machine: seconds a step, how far parameters differ, equal logs or not.

    python benchmarks/distributed.py configs/tiny-cpu.toml --override train.max_steps=50 --out distributed.json

All runs share the configuration and train the same steps of `--batches` batches; the first number of processes is what
the others are compared with. Prints a table and writes JSON with hardware and commit.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from draftsmith.observe import describe_environment
from draftsmith.plan.tables import text_table
from draftsmith.training import load_checkpoint

NOTHING_ELSE = ("eval.num_prompts=0", "eval.num_code_prompts=0", "eval.num_timed=0")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path, help="configuration to train")
    parser.add_argument("--override", nargs="*", default=[], help="settings, such as train.max_steps=50")
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--batches", type=int, default=4, help="of a step: train.grad_accum")
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
    options = parser.parse_args()
    accumulated = f"train.grad_accum={options.batches}"
    with tempfile.TemporaryDirectory() as scratch:
        runs = {number: Path(scratch) / str(number) for number in options.processes}
        for number, run in runs.items():
            train(options.config, run, *NOTHING_ELSE, *options.override, accumulated, processes=number)
        first = runs[options.processes[0]]
        rows = [{"processes": number, **compared(run, first)} for number, run in runs.items()]
    found = {"environment": describe_environment(), "override": options.override, "runs": rows}
    options.out.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    names = list(rows[0])
    print(text_table(names, [[shown(row[name]) for name in names] for row in rows]))


def shown(value: float) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def train(config: Path, run: Path, *settings: str, processes: int) -> None:
    program = [sys.executable, "-c", "from draftsmith.cli import main; main()"]
    own = [f"run.dir={run}", f"distributed.num_processes={processes}"]
    subprocess.run([*program, "train", str(config), *settings, *own], check=True, stdout=subprocess.DEVNULL)


def compared(run: Path, first: Path) -> dict[str, Any]:
    """Figures of a run beside the first one's; worst_difference: of any parameter."""
    summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    ours, theirs = (load_checkpoint(each)[0].state_dict() for each in (run, first))
    return {
        "steps": summary["train_steps"],
        "seconds_per_step": summary["train_seconds"] / summary["train_steps"],
        "worst_difference": max(float((ours[name] - theirs[name]).abs().max()) for name in ours),
        "same_sample_log": (run / "samples.jsonl").read_bytes() == (first / "samples.jsonl").read_bytes(),
    }


if __name__ == "__main__":
    main()
