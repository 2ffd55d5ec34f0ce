"""What durability costs: how long training stands still for a checkpoint, and how long resuming takes.

    python benchmarks/durable.py configs/demo.toml --minutes 1.5 --json durable.json

Trains a real configuration with many checkpoints, stops it with SIGTERM after about two thirds, resumes it, and
reads what the run wrote down. The share of training time is blocked time per checkpoint over `--interval` minutes, by
default those of checkpoint.every_minutes.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from draftsmith.config import CheckpointConfig
from draftsmith.observe import describe_environment
from draftsmith.plan.tables import text_table

REPOSITORY = Path(__file__).resolve().parents[1]
COMMAND = [sys.executable, "-c", "from draftsmith.cli import main; main()"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path)
    parser.add_argument("overrides", nargs="*", help="a.b=c, as for draftsmith train")
    parser.add_argument("--minutes", type=float, default=1.5, help="training time")
    parser.add_argument("--every", type=float, default=0.1, help="minutes between two checkpoints")
    parser.add_argument(
        "--interval", type=float, default=CheckpointConfig().every_minutes, help="minutes, for the share"
    )
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        run = Path(directory) / "run"
        started = train_and_stop(arguments, run)
        resumed_at = time.time()
        subprocess.run([*COMMAND, "train", str(run), "--resume"], check=True, stderr=subprocess.DEVNULL)
        found = figures(run, arguments.interval, resumed_at)
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=REPOSITORY, capture_output=True, text=True)
    report = {"commit": commit.stdout.strip(), "environment": describe_environment(), "started": started, **found}
    print(text_table(["figure", "value"], [[name, f"{value:,.4g}"] for name, value in found.items()]))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


def train_and_stop(arguments: argparse.Namespace, run: Path) -> float:
    """Train until two thirds of the time, then SIGTERM; returns when it was started."""
    started = time.time()
    settings = [
        *arguments.overrides,
        f"train.minutes={arguments.minutes}",
        f"checkpoint.every_minutes={arguments.every}",
        "eval.num_prompts=0",
        "eval.num_code_prompts=0",
        "eval.num_timed=0",
        f"run.dir={run}",
    ]
    with subprocess.Popen([*COMMAND, "train", str(arguments.config), *settings], stderr=subprocess.DEVNULL) as process:
        while not (run / "metrics.jsonl").exists() or not (run / "metrics.jsonl").stat().st_size:
            time.sleep(0.1)
        time.sleep(40 * arguments.minutes)
        os.kill(process.pid, signal.SIGTERM)
        if process.wait() != 143:
            sys.exit(f"training ended with {process.returncode} before it was stopped")
    return started


def figures(run: Path, interval_minutes: float, resumed_at: float) -> dict[str, Any]:
    """Everything in seconds unless its name says otherwise."""
    rows, events = (lines(run / f"{name}.jsonl") for name in ("metrics", "events"))
    saves = [event for event in events if event["event"] == "checkpoint"]
    (resume,) = [event for event in events if event["event"] == "resume"]
    blocked = [event["blocked_s"] for event in saves]
    beside, alone = step_times(rows, saves)
    slower = max(0.0, sum(beside) - len(beside) * statistics.median(alone))  # what writing takes from training
    per_save = statistics.median(blocked)
    newest = max((run / "checkpoints").glob("step-*"))
    first = next(row["time"] for row in rows if row["time"] > resume["time"])
    return {
        "checkpoints": len(saves),
        "megabytes": sum(path.stat().st_size for path in newest.iterdir()) / 1e6,
        "blocked_median": per_save,
        "blocked_worst": max(blocked),
        "write_median": statistics.median(event["write_s"] for event in saves),
        "step_median": statistics.median(alone),
        "lost_per_save_with_slower_steps": per_save + slower / max(len(saves), 1),
        "blocked_percent_at_the_interval": 100 * per_save / (60 * interval_minutes),
        "lost_percent_at_the_interval": 100 * (per_save + slower / max(len(saves), 1)) / (60 * interval_minutes),
        "resume_start_to_first_step": first - resumed_at,
        "resume_verifying_and_restoring": resume["restored_s"],
        "resume_training_to_first_step": first - resume["time"],
    }


def step_times(rows: list[dict[str, Any]], saves: list[dict[str, Any]]) -> tuple[list[float], list[float]]:
    """Seconds between two steps while a checkpoint was being written, and while none was."""
    beside: list[float] = []
    alone: list[float] = []
    for before, after in itertools.pairwise(rows):
        begins = [(save["time"] - save["write_s"], save["time"]) for save in saves]
        busy = any(begin < after["time"] and before["time"] < end for begin, end in begins)
        if after["time"] - before["time"] < 60:  # not the time between stopping and resuming
            (beside if busy else alone).append(after["time"] - before["time"])
    return beside, alone


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


if __name__ == "__main__":
    main()
