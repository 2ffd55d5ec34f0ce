"""What watching a run costs: each part alone, and all of it inside real steps, live view and a sink included.

    python benchmarks/observe.py configs/demo.toml --override data.limit=200 train.minutes=1 --json observe.json

Inside real steps, everything between "a row is ready" and "the loop goes on" is timed in the thread that trains: lines
of JSON, the terminal picture (drawn to /dev/null as a terminal of 120 columns), figures of the flow, handing rows to
the sinks. What the sinks' own threads compute is counted in CPU time, for on a machine without idle cores it is taken
away from training as well.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import itertools
import json
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from rich.console import Console

from draftsmith.config import RunConfig, load_config
from draftsmith.flow import FlowStats, StageStats
from draftsmith.observe import Journal, TrainingView, describe_environment, live, open_sinks, sinks
from draftsmith.observe.lines import LineLog
from draftsmith.observe.sinks import Sinks
from draftsmith.plan.tables import text_table
from draftsmith.run.starting import train
from draftsmith.streams import FeatureStream

PROMISE = 0.005  # of a step
REPEATS = 300
MANY_S = 1e9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path, help="configuration to train for a moment")
    parser.add_argument("--override", nargs="*", default=[], help="settings, such as train.minutes=1")
    parser.add_argument("--sinks", nargs="*", default=["tensorboard"], help="sinks to train with")
    parser.add_argument("--json", type=Path, help="file to write")
    arguments = parser.parse_args()
    alone = parts_alone()
    print(text_table(["part, alone", "us"], [[name, f"{cost_us:.1f}"] for name, cost_us in alone.items()]))
    names = json.dumps(arguments.sinks)
    overrides = [*arguments.override, f"observe.sinks={names}", "eval.num_prompts=0", "eval.num_code_prompts=0"]
    inside = inside_steps(load_config(arguments.config, overrides))
    print(text_table(["inside real steps", ""], [[name, f"{value:,.4g}"] for name, value in inside.items()]))
    held = inside["share_of_step"] < PROMISE and inside["share_with_threads"] < PROMISE
    print(f"promised: under {PROMISE:.1%} of a step: {'held' if held else 'NOT HELD'}")
    if arguments.json:
        commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
        found = {"commit": commit, "environment": describe_environment(), "alone_us": alone, "inside": inside}
        arguments.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


def parts_alone() -> dict[str, float]:
    """Microseconds of one call of each part, the median of five rounds."""
    with tempfile.TemporaryDirectory() as directory, Journal(Path(directory)) as journal:
        found = {"a line of metrics.jsonl": _cost_us(lambda: journal.metrics(**_row()))}
        found["a line of samples.jsonl"] = _cost_us(lambda: journal.trained(step=1, epoch=0, seq=1, samples=(1, 2, 3)))
    row = {"time": 1.0, **_row()}
    for columns in (60, 120, 200):
        with _terminal(columns), TrainingView("runs/demo", _stats, base_lr=0.02) as view:
            view._due = MANY_S
            found["counting a row for the view"] = _cost_us(functools.partial(view.metrics, row))
            found[f"drawing at {columns} columns"] = _cost_us(functools.partial(_draw, view, row))
    with open_sinks([], Path(), {}, warn=print) as none:
        found["handing a row to no sink"] = _cost_us(lambda: none.metrics(row))
    with mock.patch.dict(sinks.SINKS, {"x": _swallow}), open_sinks(["x"], Path(), {}, warn=lambda _text: None) as one:
        found["handing a row to a sink"] = _cost_us(lambda: one.metrics(row))
    return found


def inside_steps(config: RunConfig) -> dict[str, float]:
    """Train as the configuration says, with clocks around everything that only watches."""
    spent: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        stack.enter_context(_terminal(120))
        watched = [(LineLog, "append"), (Sinks, "metrics"), (Sinks, "event"), (TrainingView, "metrics")]
        for owner, name in (*watched, (FeatureStream, "summary")):
            stack.enter_context(
                mock.patch.object(owner, name, _timed(getattr(owner, name), spent, f"{owner.__name__}.{name}"))
            )
        threads_s = [0.0]
        for name in config.observe.sinks:
            counted = _counted(sinks.SINKS[name], threads_s)
            stack.enter_context(mock.patch.dict(sinks.SINKS, {name: counted}))
        run = Path(directory) / "run"
        train(config.model_copy(update={"run": config.run.model_copy(update={"dir": run})}), name="observe")
        rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    times = [row["time"] for row in rows if "loss" in row]
    total_s = sum(spent.values())
    wall_s, steps = times[-1] - times[0], [later - earlier for earlier, later in itertools.pairwise(times)]
    return {
        "batches": len(times),
        "median_batch_ms": 1e3 * statistics.median(steps),
        "observation_ms_per_batch": 1e3 * total_s / len(times),
        **{f"  of it {name}": 1e3 * seconds / len(times) for name, seconds in spent.items()},
        "share_of_step": total_s / wall_s,
        "sink_threads_ms_per_batch": 1e3 * threads_s[0] / len(times),
        "share_with_threads": (total_s + threads_s[0]) / wall_s,
    }


def _timed(method: Callable[..., Any], spent: dict[str, float], name: str) -> Callable[..., Any]:
    def wrapped(*arguments: Any, **named: Any) -> Any:
        began = time.perf_counter()
        try:
            return method(*arguments, **named)
        finally:
            spent[name] = spent.get(name, 0.0) + time.perf_counter() - began

    return wrapped


def _counted(sink: sinks.OpenSink, spent: list[float]) -> sinks.OpenSink:
    """The same sink; `spent` collects the CPU time of its writes. Opening happens once a run and is left out."""

    @contextmanager
    def opened(run: Path, config: dict[str, Any]) -> Iterator[sinks.Write]:
        with sink(run, config) as write:

            def wrapped(row: dict[str, Any]) -> None:
                began = time.thread_time()
                write(row)
                spent[0] += time.thread_time() - began

            yield wrapped

    return opened


@contextmanager
def _terminal(columns: int) -> Iterator[None]:
    """Whatever is drawn goes to nobody, as if to a terminal."""
    with open(os.devnull, "w", encoding="utf-8") as nobody:
        console = Console(file=nobody, force_terminal=True, width=columns, height=40, color_system="truecolor")
        with mock.patch.object(live, "Console", return_value=console):
            yield


@contextmanager
def _swallow(_run: Path, _config: dict[str, Any]) -> Iterator[sinks.Write]:
    yield lambda _row: None


def _draw(view: TrainingView, row: dict[str, Any]) -> None:
    view._due = 0.0
    view.metrics(row)


def _cost_us(call: Callable[[], None]) -> float:
    rounds = []
    for _ in range(5):
        began = time.perf_counter()
        for _ in range(REPEATS):
            call()
        rounds.append((time.perf_counter() - began) / (REPEATS))
    return 1e6 * statistics.median(rounds)


def _row() -> dict[str, Any]:
    place = {"epoch": 0, "seq": 1, "bucket": 3, "num_slots": 2048, "progress": 0.5, "step": 1}
    learned = {"loss": 2.5, "acceptance": 1.25, "accuracy_by_slot": [0.5] * 15, "grad_norm": 0.5, "lr_factor": 0.5}
    return {**place, **learned, "num_blocks": 64, "num_tokens": 1800, "skipped": False, "spike": False}


def _stats() -> FlowStats:
    stage = StageStats("plan", 1, 100, 200_000, 0, 1.0, 9.0, 90.0, 2, 2_000_000, max_items=4)
    names = ("plan", "collate", "target", "training")
    return FlowStats(tuple(dataclasses.replace(stage, name=name) for name in names), 100.0, 10**7, 10**8, 10**9, 0.0)


if __name__ == "__main__":
    main()
