"""`regenerate --server`: every fault of a server has a defined end, and nothing is lost, doubled or leaked."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from stub_server import DRIP_S, MODEL, Behaviour, StubServer, serving

from draftsmith.data import AnswerSettings, ChatServer, Regenerated, ServerSettings, prepare, regenerate, through_server
from draftsmith.errors import DataError, DraftsmithError, ModelError
from draftsmith.records import Conversation
from helpers import Finished, chat_row, draftsmith, write_jsonl

KEY = "sk-very-secret-0123"
SHORT = AnswerSettings(max_new_tokens=16)


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    return None


def rows(number: int = 6, turns: int = 2) -> list[Conversation]:
    return [
        Conversation(f"c{i}", tuple({"role": "user", "content": f"{i}.{turn}?"} for turn in range(turns)))
        for i in range(number)
    ]


def ask(
    server: StubServer,
    destination: Path,
    conversations: Sequence[Conversation] | None = None,
    *,
    sampling: AnswerSettings = SHORT,
    strict: bool = False,
    **settings: Any,
) -> Regenerated:
    known = {"concurrency": 3, "attempts": 3, "timeout_s": 5.0, "first_pause_s": 0.001, **settings}
    numbered = list(enumerate(rows() if conversations is None else conversations, start=1))
    answer_all = through_server(ChatServer(ServerSettings(server.url, MODEL, **known)), sampling)
    return regenerate(numbered, destination, answer_all, made_with={"model": MODEL}, strict=strict)


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def command(server: StubServer, source: Path, destination: Path, *options: object) -> Finished:
    return draftsmith("regenerate", source, destination, "--target", MODEL, "--server", server.url, *options)


def test_every_turn_is_answered_in_its_place_and_rows_keep_their_order(tmp_path: Path) -> None:
    with serving(lambda body, _: time.sleep(0.05) if body else None) as server:
        made = ask(server, tmp_path / "made.jsonl")
    written = lines_of(tmp_path / "made.jsonl")
    assert [row["id"] for row in written] == [f"c{i}" for i in range(6)]
    for i, row in enumerate(written):
        expected = []
        for turn in range(2):
            expected += [("user", f"{i}.{turn}?"), ("assistant", f"You said {i}.{turn}?")]
        assert [(m["role"], m["content"]) for m in row["messages"]] == expected
        assert row["truncated"] is False
    assert (made.num_written, made.num_reused, made.num_truncated, made.num_tokens) == (6, 0, 0, 60)
    second = [body for body in server.requests if len(body["messages"]) == 3]
    assert all(body["messages"][1]["content"].startswith("You said") for body in second)
    assert 1 < server.most_at_once <= 3


@pytest.mark.parametrize(
    "fault",
    [500, 502, 503, 429, 408, "garbage", "no message", "not gzip", "hang up", "half", {"finish_reason": "abort"}],
)
def test_what_may_pass_is_tried_again(fault: Any, tmp_path: Path) -> None:
    """One network hiccup ended a long run: https://github.com/NVIDIA-NeMo/Automodel/pull/2459"""
    with serving(lambda body, before: fault if body and before < 2 else None) as server:
        made = ask(server, tmp_path / "made.jsonl")
    assert (made.num_written, made.left_out) == (6, {})
    assert len(server.requests) == 3 * 12


def test_an_answer_that_takes_too_long_is_asked_for_again(tmp_path: Path) -> None:
    with serving(lambda body, before: "hang" if body and before == 0 else None) as server:
        made = ask(server, tmp_path / "made.jsonl", rows(2, 1), timeout_s=0.3)
    assert made.num_written == 2


@pytest.mark.parametrize("fault", ["drip", "drip head"])
def test_an_answer_that_comes_in_drops_is_given_up_in_time(fault: str, tmp_path: Path) -> None:
    """Every byte is in time, so a limit for each read never ends it."""
    began = time.monotonic()
    with serving(lambda body, before: fault if body and before == 0 else None) as server:
        made = ask(server, tmp_path / "made.jsonl", rows(2, 1), timeout_s=0.5)
        assert time.monotonic() - began < DRIP_S / 2
    assert made.num_written == 2
    assert len(server.requests) == 4


def test_a_server_that_never_gets_done_is_named_with_the_time_it_had(tmp_path: Path) -> None:
    with (
        serving(lambda body, _: "drip" if body else None) as server,
        pytest.raises(ModelError, match=r"no whole answer within 0\.2 s"),
    ):
        ask(server, tmp_path / "made.jsonl", rows(1, 1), timeout_s=0.2)


@pytest.mark.parametrize("fault", [503, "garbage", "hang up"])
def test_a_server_that_stays_broken_ends_the_run_and_the_same_command_goes_on(fault: Any, tmp_path: Path) -> None:
    broken = True

    def behave(body: dict[str, Any], _before: int) -> Any:
        return fault if body and broken and body["messages"][0]["content"] in ("4.0?", "5.0?") else None

    destination = tmp_path / "made.jsonl"
    with serving(behave) as server:
        with pytest.raises(ModelError, match=r"does not answer after 3 attempts.*the same command goes on"):
            ask(server, destination, concurrency=1)
        assert not destination.exists()
        broken = False
        server.requests.clear()
        made = ask(server, destination, concurrency=1)
        assert {question[0] for question in server.questions()} == {"4", "5"}
    assert (made.num_written, made.num_reused) == (2, 4)
    assert [row["id"] for row in lines_of(destination)] == [f"c{i}" for i in range(6)]


def test_a_server_that_is_not_there_is_named(tmp_path: Path) -> None:
    with serving() as server:
        pass
    with pytest.raises(ModelError, match=r"http://127.0.0.1:\d+/v1 does not answer after 3 attempts: Connect"):
        ask(server, tmp_path / "made.jsonl")


@pytest.mark.parametrize("status", [400, 413, 422])
def test_a_row_that_the_server_refuses_is_counted_and_the_others_are_answered(status: int, tmp_path: Path) -> None:
    with serving(lambda body, _: status if body and body["messages"][0]["content"] == "2.0?" else None) as server:
        made = ask(server, tmp_path / "made.jsonl")
        assert made.num_written == 5
        ((reason, left_out),) = made.left_out.items()
        assert (left_out.count, left_out.first.line) == (1, 3)
        assert str(status) in reason
        with pytest.raises(DataError, match="line 3"):
            ask(server, tmp_path / "strict.jsonl", strict=True)
    known = json.loads((tmp_path / "made.jsonl.meta.json").read_text(encoding="utf-8"))
    assert known["left_out"][0]["count"] == 1
    assert [place["line"] for place in known["left_out"][0]["places"]] == [3]


def test_a_row_that_breaks_the_server_is_left_out_and_a_broken_server_ends_the_run(tmp_path: Path) -> None:
    with serving(lambda body, _: 500 if body and body["messages"][0]["content"] == "2.0?" else None) as server:
        made = ask(server, tmp_path / "made.jsonl")
    assert (made.num_written, list(made.left_out)) == (5, ["the server fails at it"])
    with (
        serving(lambda body, _: 500 if body else None) as server,
        pytest.raises(ModelError, match="does not answer after 3 attempts: HTTP 500"),
    ):
        ask(server, tmp_path / "other.jsonl", concurrency=1)


def test_a_server_that_refuses_every_row_ends_the_run(tmp_path: Path) -> None:
    with (
        serving(lambda body, _: 400 if body else None) as server,
        pytest.raises(DataError, match="none of the first 8 rows can be answered: line"),
    ):
        ask(server, tmp_path / "made.jsonl", rows(30, 1))
    assert not (tmp_path / "made.jsonl").exists()


@pytest.mark.parametrize("status", [401, 403])
def test_a_refused_key_ends_the_run_at_once_and_is_never_shown_or_written(
    status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    source = write_jsonl(tmp_path / "rows.jsonl", [chat_row(f"{i}?", None, str(i)) for i in range(4)])
    with serving(lambda body, _: status if body else None) as server:
        done = command(server, source, tmp_path / "made.jsonl")
        assert set(server.keys) == {f"Bearer {KEY}"}
    assert done.code == 2
    assert "the API key is refused" in done.err
    assert len(server.requests) <= 16
    assert KEY not in done.err + done.out
    with serving() as server:
        done = command(server, source, tmp_path / "made.jsonl")
        assert done.code == 0, done.err
    assert KEY not in done.err + done.out
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and KEY in path.read_text(encoding="utf-8")]


def test_a_key_is_asked_for_where_none_is_set(tmp_path: Path) -> None:
    with serving(lambda _body, _before: 401) as server, pytest.raises(ModelError, match="it wants an API key"):
        ask(server, tmp_path / "made.jsonl")
    assert server.requests == []


def test_a_server_of_another_model_is_refused_before_anything_is_asked(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "rows.jsonl", [chat_row("Hi", None, "a")])
    with serving() as server:
        done = draftsmith("regenerate", source, tmp_path / "made.jsonl", "--target", "other", "--server", server.url)
    assert done.code == 2
    assert f"serves {MODEL}, not other" in done.err
    assert server.requests == []


def test_a_server_that_lists_no_models_is_used_all_the_same(tmp_path: Path) -> None:
    with serving(lambda body, _: None if body else "no list") as server:
        assert ask(server, tmp_path / "made.jsonl").num_written == 6


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("127.0.0.1:8000", "is no address"),
        ("ftp://127.0.0.1", "is no address"),
        ("http://", "is no address"),
        ("http://me:secret@127.0.0.1/v1", "put the key into the environment"),
    ],
)
def test_an_address_that_is_none_is_named_without_its_password(url: str, words: str) -> None:
    with pytest.raises(ModelError, match=words) as found:
        ChatServer(ServerSettings(url, MODEL))
    assert "secret" not in str(found.value)


def test_an_answer_cut_at_the_limit_is_marked_and_not_trained_on_by_default(tmp_path: Path, tokenizer: Any) -> None:
    """Truncated rows polluted the data: https://github.com/vllm-project/speculators/issues/584"""

    def behave(body: dict[str, Any], _before: int) -> Any:
        return {"finish_reason": "length"} if body and body["messages"][-1]["content"].startswith("3.1") else None

    with serving(behave) as server:
        made = ask(server, tmp_path / "made.jsonl")
    assert made.num_truncated == 1
    assert [row["truncated"] for row in lines_of(tmp_path / "made.jsonl")] == [i == 3 for i in range(6)]
    store = prepare(tmp_path / "made.jsonl", tmp_path / "store", tokenizer, max_length=512, holdout=0.0)
    assert "c3" not in store.ids
    assert len(store) == 5


def test_reasoning_is_kept_beside_the_answer_and_sent_back_with_it(tmp_path: Path) -> None:
    said = {"role": "assistant", "content": "4", "reasoning_content": "2 + 2"}
    with serving(lambda body, _: {"message": said} if body else None) as server:
        ask(server, tmp_path / "made.jsonl", rows(1))
    (row,) = lines_of(tmp_path / "made.jsonl")
    assert [m for m in row["messages"] if m["role"] == "assistant"] == [said, said]
    assert server.requests[1]["messages"][1] == said


@pytest.mark.parametrize(
    ("choice", "reason"),
    [
        ({"finish_reason": "content_filter"}, "the answer does not end by itself"),
        ({"message": {"role": "assistant", "content": None}}, "an empty answer"),
        ({"message": {"role": "assistant", "content": " \n"}}, "an empty answer"),
        ({"message": {"role": "assistant", "content": "half \ud83d of it"}}, "not UTF-8"),
    ],
)
def test_an_answer_that_teaches_nothing_is_counted(choice: dict[str, Any], reason: str, tmp_path: Path) -> None:
    with serving(lambda body, _: choice if body and body["messages"][0]["content"] == "1.0?" else None) as server:
        made = ask(server, tmp_path / "made.jsonl")
    assert (made.num_written, list(made.left_out)) == (5, [reason])


def test_sampling_settings_are_sent_and_recorded_and_draws_do_not_depend_on_the_place_of_a_row(tmp_path: Path) -> None:
    with serving() as server:
        sampling = AnswerSettings(max_new_tokens=9, temperature=0.7, seed=5, template_kwargs={"enable_thinking": False})
        ask(server, tmp_path / "one.jsonl", rows(4), sampling=sampling)
        first = {json.dumps(body["messages"]): body["seed"] for body in server.requests}
        server.requests.clear()
        ask(server, tmp_path / "two.jsonl", rows(4)[::-1], sampling=sampling)
        assert {json.dumps(body["messages"]): body["seed"] for body in server.requests} == first
    assert len(set(first.values())) == 8
    body = server.requests[0]
    assert (body["max_tokens"], body["temperature"], body["model"]) == (9, 0.7, MODEL)
    assert body["chat_template_kwargs"] == {"enable_thinking": False}
    source = write_jsonl(tmp_path / "rows.jsonl", [chat_row("Hi", None, "a")])
    with serving() as server:
        done = command(server, source, tmp_path / "made.jsonl", "--max-new-tokens", 7, "--seed", 3)
        assert done.code == 0, done.err
    known = json.loads((tmp_path / "made.jsonl.meta.json").read_text(encoding="utf-8"))["made_with"]
    assert known == {
        "through": "server",
        "model": MODEL,
        "max_new_tokens": 7,
        "temperature": 0.0,
        "seed": 3,
        "template": {},
    }


def test_pauses_grow_and_follow_what_the_server_asks_for() -> None:
    pauses: list[float] = []
    with serving(lambda _body, _before: 503) as server:
        settings = ServerSettings(server.url, MODEL, attempts=4, first_pause_s=1.0)
        with pytest.raises(DraftsmithError):
            ChatServer(settings, sleep=pauses.append).check()
    assert len(pauses) == 3
    assert all(0.75 * 2**i <= pause <= 1.25 * 2**i for i, pause in enumerate(pauses))


def test_after_kill_minus_9_no_answer_is_lost_or_asked_for_twice(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "rows.jsonl", [chat_row(f"{i}?", None, str(i)) for i in range(24)])
    destination = tmp_path / "made.jsonl"
    behave: Behaviour = lambda body, _: time.sleep(0.1) if body else None  # noqa: E731
    with serving(behave) as server:
        options = ["--target", MODEL, "--server", server.url, "--concurrency", "2"]
        code = "from draftsmith.cli import main; main()"
        arguments = [sys.executable, "-c", code, "regenerate", str(source), str(destination), *options]
        process = subprocess.Popen(arguments, env=os.environ, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        partial = tmp_path / "made.jsonl.partial"
        while not partial.exists() or partial.read_bytes().count(b"\n") < 6:
            assert process.poll() is None
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
        process.wait()
        kept = len(partial.read_bytes().split(b"\n")) - 2
        server.requests.clear()
        done = command(server, source, destination)
    assert done.code == 0, done.err
    assert f"{24 - kept} conversations answered now, {kept} before" in done.out
    assert len(server.questions()) == len(set(server.questions())) == 24 - kept
    assert [row["id"] for row in lines_of(destination)] == [str(i) for i in range(24)]
    assert not partial.exists()
