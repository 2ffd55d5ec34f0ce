"""`make demo` from a fresh clone with an empty cache, then a second time: wall time, peak memory, what it reached.

    python benchmarks/demo.py --out demo.json [--keep DIRECTORY]

Needs git, make and the network that `pip install` needs. Prints a table and writes JSON with hardware and commit.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
    parser.add_argument("--keep", type=Path, help="directory for clone and cache, kept; by default a temporary one")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        base = arguments.keep or Path(temporary)
        clone = base / "draftsmith"
        subprocess.run(["git", "clone", "--quiet", str(REPOSITORY), str(clone)], check=True)
        runs = [run_demo(clone, base / "cache", turn) for turn in ("fresh clone", "second time")]
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=REPOSITORY, capture_output=True, text=True)
    arguments.out.write_text(json.dumps({"commit": commit.stdout.strip(), "runs": runs}, indent=2) + "\n")
    for run in runs:
        print(row(run))


def run_demo(clone: Path, cache: Path, name: str) -> dict[str, Any]:
    start = time.perf_counter()
    done = subprocess.run(["make", "demo"], cwd=clone, env={**os.environ, "XDG_CACHE_HOME": str(cache)}, check=False)
    minutes = (time.perf_counter() - start) / 60
    if done.returncode:
        sys.exit(f"make demo ({name}) failed with exit code {done.returncode}")
    run = max((clone / "runs").iterdir(), key=lambda path: path.stat().st_mtime)
    return {
        "name": name,
        "minutes": round(minutes, 2),
        "peak_child_memory_bytes": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024,
        "summary": json.loads((run / "summary.json").read_text()),
        "environment": json.loads((run / "environment.json").read_text()),
    }


def row(run: dict[str, Any]) -> str:
    summary = run["summary"]
    sets = "  ".join(f"{name} {found['length']:.2f}" for name, found in summary["sets"].items())
    return (
        f"{run['name']}: {run['minutes']:.1f} min, peak {run['peak_child_memory_bytes'] / 1e9:.1f} GB, "
        f"{summary['train_steps']} steps, acceptance {sets}, "
        f"equal to greedy {summary['num_lossless']}/{summary['num_lossless_checked']}, "
        f"{summary['baseline_tokens_per_s']:.1f} -> {summary['speculative_tokens_per_s']:.1f} tokens/s "
        f"on {run['environment']['processor']}, {run['environment']['cores']} cores"
    )


if __name__ == "__main__":
    main()
