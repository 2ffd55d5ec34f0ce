"""How fast `prepare` is beside the tokenizer alone, how much memory it takes, and how long a store takes to open.

    python benchmarks/data.py --rows 100000

Synthetic conversations of two turns and about 600 tokens, made of the words of the shipped ones. The tokenizer alone
gets the same rendered texts (of the first rows, if there are many) in the same batches, on all cores, by its own
threads and by processes of one thread each; the faster of the two is what `prepare` is measured against. Prints a
table, writes JSON with --out. With --storage, the store is compared with the same samples in an Arrow file.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftsmith.data.accounting import Accounting
from draftsmith.data.store import TokenStore
from draftsmith.flow import Pipeline, process_workers

DEMO = Path(__file__).parents[1] / "src" / "draftsmith" / "demo" / "demo.jsonl.gz"
BATCH = 256


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--alone-rows", type=int, default=24_000, help="Rows that the tokenizer alone gets, at most.")
    parser.add_argument("--target", default="smollm2-135m")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--storage", action="store_true")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        source, store, fewer = (Path(folder) / name for name in ("rows.jsonl", "store", "fewer.jsonl"))
        write_rows(source, options.rows)
        write_rows(fewer, min(options.rows, options.alone_rows))
        alone = {how: in_a_child("alone", fewer, options, how) for how in ("threads", "processes")}
        made = in_a_child("prepare", source, options, str(store))
        opened = in_a_child("open", store, options, "")
        storage = in_a_child("storage", store, options, str(Path(folder) / "arrow")) if options.storage else None
    fastest = max(found["tokens_per_s"] for found in alone.values())
    result = {
        "rows": options.rows,
        "workers": options.workers,
        "tokenizer_alone": alone,
        "prepare": made,
        "share_of_tokenizer": made["tokens_per_s"] / fastest,
        "open": opened,
        "storage": storage,
        "environment": environment(),
    }
    print(f"{options.rows:,} conversations, {made['tokens'] / options.rows:.0f} tokens each, {options.workers} workers")
    for how, found in alone.items():
        print(f"tokenizer alone, {how:9}  {found['tokens_per_s']:>12,.0f} tokens/s")
    print(f"prepare                     {made['tokens_per_s']:>12,.0f} tokens/s, {made['seconds']:.1f} s in all")
    print(f"share of the faster         {result['share_of_tokenizer']:>12.1%}")
    print(f"peak memory, all processes  {made['peak_bytes'] / 1e6:>12,.0f} MB")
    print(f"open and read a sample      {opened['seconds']:>12.3f} s")
    for name, found in (storage or {}).items():
        print(
            f"{name:9} {found['bytes'] / 1e6:>8,.1f} MB, opened in {found['open_s'] * 1e3:>6.1f} ms, "
            f"a sample in random order {found['sample_us']:>8,.1f} us"
        )
    if options.out:
        options.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


def write_rows(path: Path, count: int) -> None:
    """About 600 tokens of SmolLM2 each: two questions, two answers."""
    with gzip.open(DEMO, "rt", encoding="utf-8") as file:
        known = [message["content"] for line in file for message in json.loads(line)["messages"]]
    words = sorted({word for text in known for word in text.split()})
    draw = random.Random(0)
    with path.open("w", encoding="utf-8") as file:
        for number in range(count):
            texts = [sentence(draw, known, words, size) for size in (200, 850, 200, 850)]
            messages = [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(texts)]
            file.write(json.dumps({"id": str(number), "messages": messages}) + "\n")


def sentence(draw: random.Random, known: Sequence[str], words: Sequence[str], size: int) -> str:
    """Known texts, with a word of any kind here and there so that no two rows are alike."""
    text = ""
    while len(text) < size:
        text += draw.choice(known) + " " + draw.choice(words) + " "
    return text[:size]


def in_a_child(what: str, place: Path, options: argparse.Namespace, argument: str) -> dict[str, Any]:
    """A fresh process, so that memory and caches of one measurement are not those of another."""
    command = [sys.executable, __file__, "--child", what, str(place), options.target, str(options.workers), argument]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def child(what: str, place: str, target: str, workers: str, argument: str) -> dict[str, Any]:
    if what == "alone":
        return tokenizer_alone(Path(place), target, int(workers), argument)
    if what == "open":
        return opening(Path(place))
    if what == "storage":
        return storing(Path(place), Path(argument))
    return preparing(Path(place), target, int(workers), Path(argument))


def preparing(source: Path, target: str, num_workers: int, destination: Path) -> dict[str, Any]:
    """The command as a user gives it, except that the tokenizer is loaded before the clock starts, as it is alone."""
    from draftsmith.config import TargetConfig
    from draftsmith.data import parse_source, prepare
    from draftsmith.target import load_tokenizer

    tokenizer = load_tokenizer(TargetConfig(model=target))
    peak = [0]

    def progress(rows: int, _tokens: int) -> None:
        if rows // BATCH % 8 == 0:  # looking at all processes takes a moment too
            peak[0] = max(peak[0], resident_bytes())

    start = time.perf_counter()
    store = prepare(
        [parse_source(str(source))],
        destination,
        tokenizer,
        max_length=3072,
        holdout=0.05,
        num_workers=num_workers,
        progress=progress,
    )
    seconds = time.perf_counter() - start
    check(store.accounting)
    tokens = int(store.lengths.sum())
    return {"seconds": seconds, "tokens": tokens, "tokens_per_s": tokens / seconds, "peak_bytes": peak[0]}


def tokenizer_alone(source: Path, target: str, num_workers: int, how: str) -> dict[str, Any]:
    from draftsmith.config import TargetConfig
    from draftsmith.target import load_tokenizer

    tokenizer = load_tokenizer(TargetConfig(model=target))
    texts = []
    with source.open(encoding="utf-8") as file:
        for line in file:
            texts.append(tokenizer.apply_chat_template(json.loads(line)["messages"], tokenize=False))
    batches = [texts[start : start + BATCH] for start in range(0, len(texts), BATCH)]
    count = Count(tokenizer.backend_tokenizer)
    start = time.perf_counter()
    tokens = sum(counted(batches, count, num_workers)) if how == "processes" else sum(map(count, batches))
    seconds = time.perf_counter() - start
    return {"seconds": seconds, "tokens": tokens, "tokens_per_s": tokens / seconds}


@dataclass(frozen=True)
class Count:
    """What the tokenizer does, and nothing else."""

    backend: Any

    def __call__(self, texts: Sequence[str]) -> int:
        return sum(map(len, self.backend.encode_batch(texts, add_special_tokens=False)))


def counted(batches: Sequence[Sequence[str]], count: Count, num_workers: int) -> Iterator[int]:
    with (
        process_workers(count, num_workers, environment={"TOKENIZERS_PARALLELISM": "false"}) as workers,
        Pipeline("alone") as pipeline,
    ):
        yield from pipeline.stage("tokenise", workers, pipeline.source("texts", batches))


def opening(path: Path) -> dict[str, Any]:
    start = time.perf_counter()
    store = TokenStore.open(path)
    sample = store.sample(len(store) - 1)
    return {"seconds": time.perf_counter() - start, "tokens": len(sample.input_ids), "samples": len(store)}


def storing(place: Path, arrow: Path) -> dict[str, Any]:
    """Bytes, time to open and time per sample in random order: our files, and the same arrays kept by `datasets`."""
    import datasets

    store = TokenStore.open(place)
    samples = (store.sample(index) for index in range(len(store)))
    rows = ({"id": s.id, "input_ids": s.input_ids, "loss_mask": s.loss_mask} for s in samples)
    features = datasets.Features(
        {
            "id": datasets.Value("string"),
            "input_ids": datasets.List(datasets.Value("int32")),
            "loss_mask": datasets.List(datasets.Value("bool")),
        }
    )
    datasets.disable_progress_bars()
    datasets.Dataset.from_list(list(rows), features=features).save_to_disk(str(arrow))
    order = random.Random(0).choices(range(len(store)), k=2000)
    return {
        "store": timed(place, TokenStore.open, lambda opened, index: opened.sample(index).input_ids, order),
        "datasets": timed(
            arrow,
            lambda path: datasets.load_from_disk(str(path)).with_format("numpy"),
            lambda opened, index: opened[index]["input_ids"],
            order,
        ),
    }


def timed(place: Path, open_it: Any, sample: Any, order: Sequence[int]) -> dict[str, float]:
    start = time.perf_counter()
    opened = open_it(place)
    sample(opened, order[0])
    open_s = time.perf_counter() - start
    start = time.perf_counter()
    tokens = sum(len(sample(opened, index)) for index in order)
    seconds = time.perf_counter() - start
    size = sum(file.stat().st_size for file in place.iterdir())
    return {"bytes": size, "open_s": open_s, "sample_us": seconds / len(order) * 1e6, "tokens": tokens}


def check(accounting: Accounting) -> None:
    if accounting.num_rejected or accounting.num_kept != accounting.num_read:
        raise SystemExit(f"not every row was kept: {accounting}")


def resident_bytes() -> int:
    """Of this process and its children together; pages that they share are counted once for each."""
    threads = [path / "children" for path in Path("/proc/self/task").iterdir()]
    children = {pid for path in threads for pid in text_of(path).split()}
    lines = [line for pid in ["self", *children] for line in text_of(Path(f"/proc/{pid}/status")).splitlines()]
    return sum(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) * 1024


def text_of(path: Path) -> str:
    """Empty if the thread or process has just ended."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""


def environment() -> dict[str, Any]:
    from importlib.metadata import version

    cpu = next(
        (
            line
            for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
            if line.startswith("model name")
        ),
        "?: ?",
    )
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return {
        "cpu": cpu.split(":")[1].strip(),
        "cores": len(os.sched_getaffinity(0)),
        "commit": commit.stdout.strip(),
        "tokenizers": version("tokenizers"),
        "transformers": version("transformers"),
    }


if __name__ == "__main__":
    import data as this  # what is sent to another process must have a module that is found there

    if sys.argv[1:2] == ["--child"]:
        print(json.dumps(this.child(*sys.argv[2:])))
    else:
        this.main()
