"""prepare under kills, stops and rivals: the store is the same bytes, or there is none."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zoo

from draftsmith.data.prepare import prepare
from draftsmith.data.source import Source
from draftsmith.data.store import TokenStore
from draftsmith.errors import DataError, StageError
from draftsmith.flow import process_workers
from helpers import chat_row, write_jsonl

module = importlib.import_module("draftsmith.data.prepare")  # the package's `prepare` is the function

SLOW = """
import sys, time
sys.path[:0] = {path!r}
import zoo
from pathlib import Path
import importlib
module = importlib.import_module("draftsmith.data.prepare")
module.BATCH_ROWS, module.CHECKPOINT_BATCHES, module.WORTH_A_PROCESS_BYTES = 8, 2, 0
module.prepare(Path({source!r}), Path({store!r}), zoo.byte_tokenizer(zoo.QWEN3), max_length=200, holdout=0.2,
    num_workers={workers}, progress=lambda rows, tokens: (print(rows, flush=True), time.sleep(0.02)))
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows of all sorts, some of them no good."""
    rows: list[Any] = [chat_row(f"Hi {i}", f"Hello {i}." * (i % 5 + 1), str(i)) for i in range(200)]
    rows[17], rows[90], rows[151] = 7, {"messages": []}, chat_row("Hi", None, "x")
    return write_jsonl(tmp_path_factory.mktemp("rows") / "rows.jsonl", rows)


def made(source: Path, store: Path, **settings: Any) -> TokenStore:
    tokenizer = zoo.byte_tokenizer(zoo.QWEN3)
    return prepare(source, store, tokenizer, max_length=200, holdout=0.2, **settings)


@pytest.fixture(scope="module")
def whole(source: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Hashes of the store that nobody interrupted."""
    return hashes(made(source, tmp_path_factory.mktemp("whole") / "store").path)


def hashes(store: Path) -> dict[str, str]:
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in store.iterdir()}


@contextlib.contextmanager
def started(source: Path, store: Path, *, workers: int = 1) -> Iterator[subprocess.Popen[str]]:
    script = SLOW.format(path=sys.path, source=str(source), store=str(store), workers=workers)
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


@pytest.mark.parametrize("workers", [1, 2])
def test_a_killed_prepare_goes_on_and_gives_the_same_bytes(
    workers: int, source: Path, whole: dict[str, str], tmp_path: Path
) -> None:
    store, rows_before = tmp_path / "store", 0
    for _ in range(3 - workers):
        with started(source, store, workers=workers) as process:
            assert process.stdout is not None
            for line in process.stdout:
                if int(line) >= rows_before + 48:
                    break
            rows_before = int(line)
            os.kill(process.pid, signal.SIGKILL)
        assert not store.exists()
    seen: list[int] = []
    made(source, store, progress=lambda rows, _tokens: seen.append(rows))
    assert seen, "there was something left to do"
    assert hashes(store) == whole
    assert [path.name for path in tmp_path.iterdir()] == ["store"], "leftovers are swept"


def test_worker_processes_end_with_a_killed_owner(source: Path, tmp_path: Path) -> None:
    with started(source, tmp_path / "store", workers=2) as process:
        assert process.stdout is not None
        process.stdout.readline()
        children = [
            pid
            for thread in Path(f"/proc/{process.pid}/task").iterdir()
            for pid in (thread / "children").read_text().split()
        ]
        assert len(children) == 2
        os.kill(process.pid, signal.SIGKILL)
        deadline = time.monotonic() + 30
        while any(Path(f"/proc/{pid}").exists() and not zombie(pid) for pid in children):
            assert time.monotonic() < deadline, "a worker outlives its owner"
            time.sleep(0.05)


def zombie(pid: str) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    return True


def test_of_two_prepares_of_one_store_the_second_is_refused_with_the_pid_of_the_first(
    source: Path, tmp_path: Path
) -> None:
    with started(source, tmp_path / "store") as process:
        assert process.stdout is not None
        process.stdout.readline()
        with pytest.raises(DataError, match=rf"is being prepared by process {process.pid}; wait for it"):
            made(source, tmp_path / "store")


def test_the_store_does_not_depend_on_the_number_of_workers(
    source: Path, whole: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "WORTH_A_PROCESS_BYTES", 0)
    monkeypatch.setattr(module, "BATCH_ROWS", 16)
    assert hashes(made(source, tmp_path / "store", num_workers=3).path) == whole


def test_errors_of_reading_and_strictness_pass_through_worker_processes(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "WORTH_A_PROCESS_BYTES", 0)
    with pytest.raises(DataError, match=r"rows\.jsonl, line 18: not a JSON object"):
        made(source, tmp_path / "store", num_workers=2, strict=True)
    (tmp_path / "broken.jsonl.gz").write_bytes(b"\x1f\x8b\x08")
    sources = [Source(str(source)), Source(str(tmp_path / "broken.jsonl.gz"))]
    with pytest.raises(DataError, match=r"broken\.jsonl\.gz is not a whole gzip file"):
        prepare(sources, tmp_path / "store", zoo.byte_tokenizer(zoo.CHATML), max_length=64, holdout=0, num_workers=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["broken.jsonl.gz"]


def test_a_stop_keeps_what_is_done_and_the_rest_is_added(
    source: Path, whole: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BATCH_ROWS", 16)

    def stop(rows: int, _tokens: int) -> None:
        if rows == 64:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        made(source, tmp_path / "store", progress=stop)
    seen: list[int] = []
    made(source, tmp_path / "store", progress=lambda rows, _tokens: seen.append(rows))
    assert seen[0] == 80
    assert hashes(tmp_path / "store") == whole


def test_a_worker_process_that_dies_is_an_error_and_no_hang() -> None:
    with process_workers(os._exit, 1) as [worker], pytest.raises(StageError, match="ended with exit code 3"):
        worker(3)
    with process_workers(signal.raise_signal, 1) as [worker], pytest.raises(StageError, match="killed by SIGKILL"):
        worker(signal.SIGKILL)


def test_what_a_worker_process_raises_and_prints_reaches_its_owner_in_the_right_way() -> None:
    with process_workers(len, 2) as workers:
        assert [worker("abc") for worker in workers] == [3, 3]
        with pytest.raises(StageError, match=r"TypeError: object of type 'int' has no len"):
            workers[0](3)  # type: ignore[arg-type]
        assert workers[0]("ab") == 2, "it lives on"
    with process_workers(print, 1) as [worker]:
        assert worker("to stderr, not between the answers") is None


def test_tokenising_alone_imports_no_torch() -> None:
    script = "import draftsmith.data, draftsmith.data.encode, sys; assert 'torch' not in sys.modules"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", script], check=True, env=environment)


def test_a_store_whose_name_looks_like_a_pattern_leaves_others_alone_and_is_begun_anew_after_a_kill(
    source: Path, tmp_path: Path
) -> None:
    others, own = tmp_path / ".b.partial", tmp_path / ".[ab].partial"
    for left in (others, own):
        left.mkdir()
    made(source, tmp_path / "[ab]")
    assert sorted(path.name for path in tmp_path.iterdir()) == [".b.partial", "[ab]"]
