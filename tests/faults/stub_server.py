"""A small server that speaks the OpenAI protocol and misbehaves on command."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

MODEL = "stub-model"
DRIP_S = 10.0
Behaviour = Callable[[dict[str, Any], int], Any]
"""(request, how often the same was asked before) -> what to do: None to answer, or one of the faults below."""


class StubServer(ThreadingHTTPServer):
    """Answers every question by repeating it. `requests` holds every body, `keys` every Authorization header."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, behave: Behaviour) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.behave = behave
        self.requests: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.most_at_once = self.now = 0
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    def questions(self) -> list[str]:
        """What every request asked last."""
        return [body["messages"][-1]["content"] for body in self.requests]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: StubServer

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        self.server.keys.append(self.headers.get("Authorization"))
        fault = self.server.behave({}, 0)
        if isinstance(fault, int):
            self._send(fault, {"error": {"message": "no"}})
        elif fault == "no list":
            self._send(404, {"error": {"message": "no such path"}})
        else:
            self._send(200, {"object": "list", "data": [{"id": MODEL}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.lock:
            before = self.server.requests.count(body)
            self.server.requests.append(body)
            self.server.keys.append(self.headers.get("Authorization"))
            self.server.now += 1
            self.server.most_at_once = max(self.server.most_at_once, self.server.now)
        try:
            self._answer(body, self.server.behave(body, before))
        finally:
            with self.server.lock:
                self.server.now -= 1

    def _answer(self, body: dict[str, Any], fault: Any) -> None:
        asked = body["messages"][-1]["content"]
        message = {"role": "assistant", "content": f"You said {asked}"}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        found = {"choices": [choice], "usage": {"completion_tokens": 5}}
        if isinstance(fault, int):
            sent = self.headers.get("Authorization")
            self._send(fault, {"error": {"message": f"refused with {sent}"}}, {"Retry-After": "0"})
        elif fault == "garbage":
            self._send(200, None, raw=b"<html>busy \xff</html>")
        elif fault == "no message":
            self._send(200, {"choices": []})
        elif fault == "not gzip":
            self._send(200, None, {"Content-Encoding": "gzip"}, raw=b"no gzip")
        elif fault == "hang":
            time.sleep(3)
        elif fault in ("drip", "drip head"):
            self._drip(json.dumps(found).encode(), after_head=fault == "drip")
        elif fault == "hang up":
            self.close_connection = True
        elif fault == "half":
            self.send_response(200)
            self.send_header("Content-Length", "1000")
            self.end_headers()
            self.wfile.write(b'{"choices": [')
            self.close_connection = True
        else:
            if fault is not None:
                choice.update(fault)
            self._send(200, found)

    def _drip(self, text: bytes, *, after_head: bool) -> None:
        """A whole answer, in DRIP_S."""
        head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(text)
        at_once, dripped = (head, text) if after_head else (b"", head + text)
        with contextlib.suppress(OSError):
            self.wfile.write(at_once)
            for place in range(len(dripped)):
                self.wfile.write(dripped[place : place + 1])
                time.sleep(DRIP_S / len(dripped))
        self.close_connection = True

    def _send(self, status: int, body: Any, headers: dict[str, str] | None = None, *, raw: bytes | None = None) -> None:
        text = json.dumps(body).encode() if raw is None else raw
        self.send_response(status)
        for name, value in {"Content-Length": str(len(text)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        with contextlib.suppress(OSError):
            self.wfile.write(text)


@contextlib.contextmanager
def serving(behave: Behaviour = lambda _body, _before: None) -> Iterator[StubServer]:
    with StubServer(behave) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
