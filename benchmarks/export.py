"""A run exported in every format, each written, read back and compared: seconds and bytes.

    python benchmarks/export.py RUN --out export.json

Prints a table and writes JSON with hardware and commit. Each export is a process of its own, as a user starts it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from draftsmith.observe import describe_environment

KINDS = {
    "hf": ["--format", "hf"],
    "speculators": ["--format", "speculators"],
    "transformers": ["--format", "transformers"],
    **{f"gguf {dtype}": ["--format", "gguf", "--dtype", dtype] for dtype in ("f32", "f16", "bf16", "q8_0")},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="a run directory")
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        rows = [measure(arguments.run, Path(scratch), name) for name in KINDS]
    found: dict[str, Any] = {"environment": describe_environment(), "exports": rows}
    found["total_s"] = round(sum(row["seconds"] for row in rows), 2)
    arguments.out.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    for row in rows:
        print(f"{row['format']:<12} {row['seconds']:6.1f} s  {row['bytes'] / 1e6:8.1f} MB")
    print(f"{'all':<12} {found['total_s']:6.1f} s")


def measure(run: Path, scratch: Path, name: str) -> dict[str, Any]:
    destination = scratch / name.replace(" ", "-")
    command = [
        sys.executable,
        "-c",
        "from draftsmith.cli import main; main()",
        "export",
        run,
        destination,
        *KINDS[name],
    ]
    start = time.perf_counter()
    subprocess.run([str(part) for part in command], check=True, stdout=subprocess.DEVNULL)
    seconds = time.perf_counter() - start
    size = sum(path.stat().st_size for path in destination.iterdir())
    return {"format": name, "seconds": round(seconds, 2), "bytes": size}


if __name__ == "__main__":
    main()
