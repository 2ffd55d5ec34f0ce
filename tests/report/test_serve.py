"""The served report: only on this machine, always the newest, and no burden on the run."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from journals import step_line, write_run

from draftsmith.report import LivePage, open_server
from draftsmith.run import reporting
from helpers import draftsmith


class Source:
    """A page that counts how often it was made, with a clock by hand."""

    def __init__(self) -> None:
        self.version, self.made, self.now, self.cost = 0, 0, 100.0, 1.0

    def make(self) -> str:
        self.made += 1
        self.now += self.cost
        return f'<meta charset="utf-8">version {self.version}'

    def live(self) -> LivePage:
        return LivePage(self.make, lambda: f"state-{self.version}", clock=lambda: self.now)


@pytest.fixture
def served() -> Iterator[tuple[int, Source]]:
    source = Source()
    with open_server(source.live(), port=0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_address[1], source
        server.shutdown()
        thread.join()


def asked(port: int, path: str, **headers: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


def test_a_page_is_made_again_when_its_run_has_gone_on_and_not_before_it_is_old_enough() -> None:
    source = Source()
    live = source.live()
    assert "version 0" in live.page()
    source.version = 1
    assert (live.state(), "version 0" in live.page()) == ("state-0", True)
    source.now += 19
    assert "version 0" in live.page()
    source.now += 2
    assert live.state() == "state-1"
    assert "version 1" in live.page()
    source.now += 1000
    assert "version 1" in live.page()
    assert source.made == 2


def test_the_page_knows_the_state_that_it_was_made_from(served: tuple[int, Source]) -> None:
    port, _ = served
    assert asked(port, "/state") == (200, "state-0")
    status, page = asked(port, "/")
    assert status == 200
    assert '<meta name="state" content="state-0">' in page


def test_nothing_else_is_served_and_no_other_name_is_answered(served: tuple[int, Source]) -> None:
    port, _ = served
    assert asked(port, "/../etc/passwd")[0] == 404
    assert asked(port, "/", Host="attacker.example")[0] == 403
    assert asked(port, "/", Host=f"localhost:{port}")[0] == 200


def test_a_connection_that_says_nothing_does_not_hold_up_the_next(served: tuple[int, Source]) -> None:
    port, _ = served
    with socket.create_connection(("127.0.0.1", port)):
        assert asked(port, "/state")[0] == 200


def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", map(step_line, range(3)))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = draftsmith("serve-report", run, "--port", port)
    assert done.code == 2
    assert str(port) in done.err
    assert "--port" in done.err


def test_serving_tells_its_address_and_ends_with_ctrl_c(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def pressed(_server: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("http.server.HTTPServer.serve_forever", pressed)
    run = write_run(tmp_path / "run", map(step_line, range(3)))
    before = reporting._fingerprint(run)
    done = draftsmith("serve-report", run, "--port", "0")
    assert done.code == 0, done.err
    assert "http://127.0.0.1:" in done.out
    assert not (run / "report.html").exists()
    with (run / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(step_line(3)) + "\n")
    assert reporting._fingerprint(run) != before
