"""Several processes against one, whole drafters against parts: seconds a step, bytes a rank, how far parameters differ.

    python benchmarks/distributed.py configs/tiny-cpu.toml --override train.max_steps=50 --out distributed.json

All runs share the configuration and train the same steps of `--batches` batches, in turn, `--rounds` times; the first
number of processes is what the others are compared with. Prints a table and writes JSON with hardware and commit.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from draftsmith.observe import describe_environment
from draftsmith.plan.tables import text_table
from draftsmith.training import load_checkpoint

# In every process: when training is over, say how much of drafter and moments this rank has kept.
COUNTED = """
import draftsmith.run.training as training
from draftsmith.distributed import part
original = training.learn
def learn(work, state, *others):
    flow = original(work, state, *others)
    moments = [each for optimizer in state.optimizers for kept in optimizer.state.values() for each in kept.values()]
    num_bytes = sum(part(tensor).nbytes for tensor in (*state.drafter.parameters(), *moments))
    (work.run / f"bytes-{work.peers.rank}").write_text(str(num_bytes))
    return flow
training.learn = learn
"""
PROGRAM = f"""{COUNTED}
import sys
import draftsmith.run.launching as launching
launching.COMMAND = (sys.executable, "-c", {COUNTED + "from draftsmith.run.rank import main; main()"!r})
from draftsmith.cli import main
main()
"""
NOTHING_ELSE = ("eval.num_prompts=0", "eval.num_code_prompts=0", "eval.num_timed=0")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path, help="configuration to train")
    parser.add_argument("--override", nargs="*", default=[], help="settings, such as train.max_steps=50")
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--sharded", type=int, nargs="*", default=[2], help="numbers of processes that share a drafter")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batches", type=int, default=4, help="of a step: train.grad_accum")
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
    options = parser.parse_args()
    accumulated = f"train.grad_accum={options.batches}"
    ways = [*((number, "none") for number in options.processes), *((number, "fsdp2") for number in options.sharded)]
    with tempfile.TemporaryDirectory() as scratch:
        runs = {way: [Path(scratch) / f"{way[0]}-{way[1]}-{turn}" for turn in range(options.rounds)] for way in ways}
        for turn in range(options.rounds):
            for (number, sharding), places in runs.items():
                own = [f"distributed.num_processes={number}", f"distributed.sharding={sharding}"]
                train(options.config, places[turn], *NOTHING_ELSE, *options.override, accumulated, *own)
        first = runs[ways[0]][0]
        rows = [
            {"processes": number, "sharding": sharding, **compared(places, first)}
            for (number, sharding), places in runs.items()
        ]
    found = {"environment": describe_environment(), "override": options.override, "runs": rows}
    options.out.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    names = list(rows[0])
    print(text_table(names, [[shown(row[name]) for name in names] for row in rows]))


def shown(value: float) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def train(config: Path, run: Path, *settings: str) -> None:
    command = [sys.executable, "-c", PROGRAM, "train", str(config), *settings, f"run.dir={run}"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def compared(places: list[Path], first: Path) -> dict[str, Any]:
    """Figures of equal runs beside the first one of all; worst_difference: of any parameter.

    state_bytes: parameters and moments that a rank keeps between steps, the most that any does.
    """
    run = places[0]
    summaries = [json.loads((each / "summary.json").read_text(encoding="utf-8")) for each in places]
    seconds = [summary["train_seconds"] / summary["train_steps"] for summary in summaries]
    ours, theirs = (load_checkpoint(each)[0].state_dict() for each in (run, first))
    return {
        "steps": summaries[0]["train_steps"],
        "seconds_per_step": statistics.median(seconds),
        "fastest": min(seconds),
        "slowest": max(seconds),
        "state_bytes": max(int(path.read_text()) for path in run.glob("bytes-*")),
        "worst_difference": max(float((ours[name] - theirs[name]).abs().max()) for name in ours),
        "same_sample_log": (run / "samples.jsonl").read_bytes() == (first / "samples.jsonl").read_bytes(),
    }


if __name__ == "__main__":
    main()
