"""Measuring a running server: what it tells is read, what it does not is said, and its death is noticed at once."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from draftsmith.errors import EngineError
from draftsmith.evaluation import Served, measure_server
from draftsmith.target import GREEDY, Sampling
from helpers import draftsmith

Reply = Callable[[str, dict[str, Any] | None], Any]
PROMPTS = [[1, 2, 3], [4, 5]]


class FakeServer:
    """Answers with what `reply(path, body)` returns: text as it is, bytes to break off, anything else as JSON."""

    def __init__(self, reply: Reply) -> None:
        self.asked: list[tuple[str, dict[str, Any] | None]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer(None)

            def do_POST(self) -> None:
                self._answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

            def _answer(self, body: dict[str, Any] | None) -> None:
                outer.asked.append((self.path, body))
                found = reply(self.path, body)
                if isinstance(found, int):
                    self.send_error(found)
                    return
                if isinstance(found, bytes):  # dies in the middle of an answer
                    self.send_response(200)
                    self.send_header("Content-Length", "1000")
                    self.end_headers()
                    self.wfile.write(found)
                    self.connection.close()
                    return
                text = found if isinstance(found, str) else json.dumps(found)
                self.send_response(200)
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *_arguments: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def serve() -> Iterator[Callable[[Reply], FakeServer]]:
    running: list[FakeServer] = []

    def start(reply: Reply) -> FakeServer:
        running.append(FakeServer(reply))
        return running[-1]

    yield start
    for server in running:
        server.stop()


def measure(server: FakeServer | str, engine: str, **settings: Any) -> Served:
    return measure_server(
        engine,  # type: ignore[arg-type]
        server if isinstance(server, str) else server.url,
        PROMPTS,
        **{
            "max_new_tokens": 8,
            "sampling": GREEDY,
            "timeout_s": 2.0,
            "progress": lambda _: None,
            **settings,
        },
    )


def llama(path: str, body: dict[str, Any] | None) -> Any:
    if path == "/health":
        return {"status": "ok"}
    assert body is not None
    num, accepted = (9, 4) if body["prompt"] == [1, 2, 3] else (5, 0)
    return {"timings": {"predicted_n": num, "predicted_ms": 100.0, "draft_n": 20, "draft_n_accepted": accepted}}


def test_what_llama_cpp_tells_becomes_an_acceptance_length_counted_both_ways(serve: Any) -> None:
    server = serve(llama)
    found = measure(server, "llama.cpp")
    # 8 tokens after the first in 8 - 4 forwards; 4 in 4.
    assert found.acceptance_length == pytest.approx(12 / 8)
    assert found.acceptance_length_by_response == pytest.approx((2 + 1) / 2)
    assert found.tokens_per_s == pytest.approx(14 / 0.2)
    assert any("by slot" in missing for missing in found.not_measured)
    _, body = server.asked[1]
    assert (body["prompt"], body["n_predict"], body["temperature"], body["top_k"]) == ([1, 2, 3], 8, 0.0, 1)


def test_a_server_without_a_drafter_is_said_to_tell_no_acceptance(serve: Any) -> None:
    def reply(path: str, body: dict[str, Any] | None) -> Any:
        return llama(path, body) if body is None else {"timings": {"predicted_n": 5, "predicted_ms": 50.0}}

    found = measure(serve(reply), "llama.cpp")
    assert found.acceptance_length is None
    assert any("does it have a drafter?" in missing for missing in found.not_measured)
    assert found.tokens_per_s == pytest.approx(100)


def openai(drafts: list[int] | None) -> Reply:
    """A vLLM whose counters go from drafts[0] to drafts[1]; none if it is no vLLM."""
    left = list(drafts or [])

    def reply(path: str, body: dict[str, Any] | None) -> Any:
        if path == "/v1/models":
            return {"data": [{"id": "mine"}]}
        if path == "/metrics":
            if not left:
                return 404
            seen = left.pop(0)
            return (
                "# TYPE vllm:spec_decode_num_drafts_total counter\n"
                f'vllm:spec_decode_num_drafts_total{{engine="0"}} {seen}.0\n'
                f'vllm:spec_decode_num_accepted_tokens_total{{engine="0"}} {3 * seen}.0\n'
            )
        assert path == "/v1/completions"
        assert body is not None
        assert body["model"] == "mine"
        return {"usage": {"completion_tokens": 6}}

    return reply


def test_an_openai_server_gives_speed_and_says_that_acceptance_is_not_told(serve: Any) -> None:
    found = measure(serve(openai(None)), "openai")
    assert (found.num_tokens, found.acceptance_length) == (12, None)
    assert found.tokens_per_s > 0


def test_the_counters_of_vllm_between_two_readings_give_the_acceptance_length(serve: Any) -> None:
    found = measure(serve(openai([10, 30])), "openai")
    assert found.acceptance_length == pytest.approx(1 + 3)
    assert found.acceptance_length_by_response is None


def test_an_address_that_ends_with_v1_is_the_same_server(serve: Any) -> None:
    assert measure(serve(openai(None)).url + "/v1/", "openai").num_tokens == 12


def test_sampling_is_passed_on(serve: Any) -> None:
    server = serve(llama)
    measure(server, "llama.cpp", sampling=Sampling(0.7, 40, 0.9))
    _, body = server.asked[1]
    assert (body["temperature"], body["top_k"], body["top_p"]) == (0.7, 40, 0.9)


@pytest.mark.parametrize("url", ["127.0.0.1:8080", "ftp://x", "http://", "nonsense", ""])
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(EngineError, match="no address of a server"):
        measure(url, "openai")


@pytest.mark.parametrize("engine", ["llama.cpp", "openai"])
def test_a_server_that_is_not_there_is_an_error_at_once(engine: str) -> None:
    start = time.monotonic()
    with pytest.raises(EngineError, match="cannot be reached"):
        measure("http://127.0.0.1:9", engine)
    assert time.monotonic() - start < 5


@pytest.mark.parametrize(
    ("found", "named"),
    [
        (b'{"timings": {"predi', "cannot be reached|did not answer in JSON"),
        (500, "answered 500"),
        ("<html>", "did not answer in JSON"),
        ({"content": "Hi"}, "lacks 'timings'"),
        ([], "lacks 'timings'"),
        ({"timings": {"predicted_ms": 1.0}}, "lacks 'predicted_n'"),
    ],
    ids=["dies", "fails", "no JSON", "another engine", "a list", "no count"],
)
def test_a_server_that_dies_or_talks_nonsense_is_an_error_with_its_address(found: Any, named: str, serve: Any) -> None:
    server = serve(lambda path, body: llama(path, body) if body is None else found)
    start = time.monotonic()
    with pytest.raises(EngineError, match=named) as caught:
        measure(server, "llama.cpp")
    assert server.url in str(caught.value)
    assert time.monotonic() - start < 5


def test_a_server_that_hangs_is_given_up_after_the_timeout(serve: Any) -> None:
    server = serve(lambda path, body: llama(path, body) if body is None else time.sleep(3))
    start = time.monotonic()
    with pytest.raises(EngineError, match=r"(did not answer|no answer) within 0\.5 s"):
        measure(server, "llama.cpp", timeout_s=0.5)
    assert time.monotonic() - start < 2.5


def test_a_server_without_a_model_is_said_to_have_none(serve: Any) -> None:
    with pytest.raises(EngineError, match="names no model"):
        measure(serve(lambda path, body: {"data": []}), "openai")


def test_eval_measures_a_server_with_the_prompts_of_a_run(finished_run: Path, serve: Any, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished_run, run)
    done = draftsmith("eval", run, "--engine", "llama.cpp", "--url", serve(llama).url)
    assert done.code == 0, done.err
    assert "tokens per forward" in done.out
    assert "not measured: " in done.out
    served = json.loads((run / "summary.json").read_text(encoding="utf-8"))["served"]
    assert served["llama.cpp"]["sets"]["holdout"]["num_prompts"] == 3


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("--engine", "llama.cpp"), "both --engine and --url"),
        (("--url", "http://127.0.0.1:9"), "both --engine and --url"),
        (("--engine", "vllm", "--url", "http://127.0.0.1:9"), "known are llama.cpp, openai"),
        (("--engine", "openai", "--url", "http://127.0.0.1:9"), "cannot be reached"),
    ],
)
def test_eval_explains_what_is_wrong_with_a_server(options: tuple[str, ...], named: str, finished_run: Path) -> None:
    done = draftsmith("eval", finished_run, *options)
    assert done.code == 2
    assert named in done.err
