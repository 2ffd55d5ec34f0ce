"""How fast a report is made and opened. Run: python benchmarks/report.py [--steps N] [--plotly FILE] [--out FILE]

Reading, diagnosing and rendering are timed in this process; opening in a real Chromium (playwright), from the start of
the navigation until the page says that it is ready, its first plot stands, and a zoom of all its plots is painted.
With --plotly the four longest curves are also opened as a plotly page, which is what uPlot was chosen against.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from draftsmith.observe import describe_environment
from draftsmith.report import read_run, render_report
from draftsmith.report.explain import diagnosis_of


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--plotly", type=Path, help="plotly.min.js, or one of its partial bundles")
    parser.add_argument("--chromium", default="/usr/bin/chromium")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        run = Path(directory) / "run"
        write_run(run, options.steps)
        found = measure_making(run)
        found |= measure_opening(run / "report.html", options.chromium, options.rounds)
        if options.plotly:
            plotly_page(run, options.plotly)
            found["plotly"] = {
                "mb": round((run / "plotly.html").stat().st_size / 1e6, 2),
                "open_s": opening_times(
                    run / "plotly.html", options.chromium, "html[data-ready=yes]", None, options.rounds
                ),
            }
    found |= {"steps": options.steps, "commit": commit(), "environment": describe_environment()}
    found["machine"] = f"{platform.machine()}, {os.cpu_count()} cores"
    print(json.dumps(found, indent=2))
    if options.out:
        options.out.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


def write_run(run: Path, num_steps: int) -> None:
    """Metrics of a run that never was: six buckets, falling loss, spikes, eight slots, a flow record every ten."""
    rng = np.random.default_rng(0)
    run.mkdir()
    (run / "config.toml").write_text('[batching]\norder = "quota"\nmax_tokens = 8192\n', encoding="utf-8")
    places = np.arange(num_steps)
    bucket = rng.integers(0, 6, num_steps)
    loss = 1.5 + 4 / (1 + places / 200) ** 0.5 + 0.15 * bucket + rng.normal(0, 0.08, num_steps)
    loss[rng.integers(0, num_steps, 9)] += 3
    accepted = 4.5 - 2 / (1 + places / 800) ** 0.5 + rng.normal(0, 0.2, num_steps)
    norms = np.exp(rng.normal(0, 0.3, num_steps))
    share = {"workers": 1, "busy": 0.5, "starved": 0.2, "blocked": 0.3, "tokens_per_s": 1e4}
    with (run / "metrics.jsonl").open("w", encoding="utf-8") as file:
        for i in places.tolist():
            line: dict[str, Any] = {
                "time": 1.8e9 + i,
                "epoch": i // 20_000,
                "seq": i % 20_000,
                "bucket": int(bucket[i]),
            }
            line |= {"num_slots": 8000, "step": i + 1, "loss": float(loss[i]), "acceptance": float(accepted[i])}
            line |= {"accuracy_by_slot": [0.9 - 0.09 * slot for slot in range(8)], "grad_norm": float(norms[i])}
            line |= {"lr_factor": 1 - i / num_steps, "num_blocks": 512, "num_tokens": 7000, "skipped": False}
            if i % 10 == 9:
                stages = dict.fromkeys(("plan", "collate", "target", "training"), share)
                line["flow"] = {"wall_s": float(i), "verdict": "training is the bottleneck", "stages": stages}
            file.write(json.dumps(line) + "\n")


def measure_making(run: Path) -> dict[str, Any]:
    begun = time.perf_counter()
    record = read_run(run)
    read = time.perf_counter()
    diagnosis_of(record)
    diagnosed = time.perf_counter()
    page = render_report(record)
    rendered = time.perf_counter()
    (run / "report.html").write_text(page, encoding="utf-8")
    return {
        "read_s": round(read - begun, 2),
        "diagnose_s": round(diagnosed - read, 2),
        "render_s": round(rendered - diagnosed, 2),
        "mb": round(len(page.encode()) / 1e6, 2),
    }


def measure_opening(page: Path, chromium: str, rounds: int) -> dict[str, Any]:
    ready = "html[data-ready=yes] .chart canvas"
    then = "buildAll(); zoom([1000, 3000]); zoom(null);"
    return {"open_s": opening_times(page, chromium, ready, then, rounds)}


def opening_times(page: Path, chromium: str, ready: str, then: str | None, rounds: int) -> dict[str, float]:
    """Seconds until an element as in `ready` is there, and until `then` is painted as well; medians."""
    from playwright.sync_api import sync_playwright

    shown, usable = [], []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for _ in range(rounds):
            tab = browser.new_page(viewport={"width": 1200, "height": 900})
            begun = time.perf_counter()
            tab.goto(page.as_uri())
            tab.wait_for_selector(ready, state="attached")
            shown.append(time.perf_counter() - begun)
            if then:
                tab.evaluate(
                    f"new Promise(done => {{ {then} requestAnimationFrame(() => requestAnimationFrame(done)); }})"
                )
            usable.append(time.perf_counter() - begun)
            tab.close()
        browser.close()
    return {"shown": round(float(np.median(shown)), 2), "all_plots_zoomed_twice": round(float(np.median(usable)), 2)}


def plotly_page(run: Path, library: Path) -> None:
    """Four curves of all steps, drawn by plotly as it is used by default."""
    steps = read_run(run).steps
    names = ("loss", "acceptance", "grad_norm", "lr_factor")
    curves = {name: getattr(steps, name).astype(np.float32).tolist() for name in names}
    draw = f"""const curves = {json.dumps(curves)};
    (async () => {{
      for (const [name, y] of Object.entries(curves)) {{
        const holder = document.createElement("div");
        document.body.append(holder);
        await Plotly.newPlot(holder, [{{y, mode: "lines"}}], {{title: {{text: name}}}});
      }}
      document.documentElement.dataset.ready = "yes";
    }})();"""
    scripts = f"<script>{library.read_text(encoding='utf-8')}</script><script>{draw}</script>"
    (run / "plotly.html").write_text(f"<!doctype html><meta charset='utf-8'><body>{scripts}", encoding="utf-8")


def commit() -> str:
    done = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


if __name__ == "__main__":
    main()
