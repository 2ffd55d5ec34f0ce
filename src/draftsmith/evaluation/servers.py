"""Acceptance and speed of a running server, as far as it tells: llama.cpp, or anything with OpenAI's completions.

One prompt at a time, as token ids, so that no second chat template gets in between. What a server does not tell is
listed, never guessed.

- llama.cpp reports drafted and accepted tokens with each answer (`timings` of POST /completion,
  https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md).
- vLLM counts drafts at /metrics (https://docs.vllm.ai/en/stable/design/metrics.html); what passes between two readings
  belongs to this measurement only if nobody else uses the server meanwhile.
- OpenAI's own `usage` may name accepted prediction tokens; without the number of forwards they give no length.
"""

from __future__ import annotations

import http.client
import json
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import urlsplit

from draftsmith.errors import EngineError
from draftsmith.target import Sampling

Engine = Literal["llama.cpp", "openai"]
KNOCK_S = 5.0  # a server that is there answers a trivial question within this
COUNTERS = {
    "drafts": re.compile(r"^vllm:spec_decode_num_drafts_total(?:\{[^}]*\})? (\S+)$", re.MULTILINE),
    "accepted": re.compile(r"^vllm:spec_decode_num_accepted_tokens_total(?:\{[^}]*\})? (\S+)$", re.MULTILINE),
}


@dataclass(frozen=True)
class Served:
    """What was measured at a server. Lengths are tokens per forward, the target's own included; None if not told.

    timing says what the seconds behind tokens_per_s cover.
    """

    engine: str
    url: str
    num_prompts: int
    num_tokens: int
    tokens_per_s: float
    timing: str
    acceptance_length: float | None
    acceptance_length_by_response: float | None
    not_measured: tuple[str, ...]


@dataclass(frozen=True)
class _Answer:
    """num_accepted: drafts that were kept, or None if the server does not say."""

    num_tokens: int
    seconds: float
    num_accepted: int | None = None

    @property
    def num_forwards(self) -> int:
        """Forwards after the prompt's, which gives the first token: each adds the drafts that it kept and one more."""
        return self.num_tokens - 1 - (self.num_accepted or 0)


def measure_server(
    engine: Engine,
    url: str,
    prompts: Sequence[Sequence[int]],
    *,
    max_new_tokens: int,
    sampling: Sampling,
    timeout_s: float,
    progress: Callable[[str], None],
) -> Served:
    """Send every prompt once. Raises EngineError if the server is not there, dies, or takes longer than `timeout_s`."""
    server = _Server(url, timeout_s)
    ask, settings = _llama_cpp(server) if engine == "llama.cpp" else _openai(server)
    before = _counters(server) if engine == "openai" else None
    answers = []
    for number, prompt in enumerate(prompts, 1):
        answers.append(ask(prompt, {**settings, **_choice(sampling), "seed": number}, max_new_tokens))
        progress(f"{number} of {len(prompts)} prompts")
    if engine == "llama.cpp":
        return _summed_up(engine, url, answers, "decoding alone, by the server's clock", _told(answers))
    after = _counters(server)
    return _summed_up(engine, url, answers, "whole requests, prompt and network included", _between(before, after))


def _llama_cpp(server: _Server) -> tuple[Callable[..., _Answer], dict[str, Any]]:
    server.get("/health")

    def ask(prompt: Sequence[int], settings: dict[str, Any], max_new_tokens: int) -> _Answer:
        body = {**settings, "prompt": list(prompt), "n_predict": max_new_tokens}
        found = server.post("/completion", body)
        timings = server.field(found, "timings")
        num_tokens = int(server.field(timings, "predicted_n"))
        accepted = int(timings["draft_n_accepted"]) if timings.get("draft_n") else None
        return _Answer(num_tokens, float(server.field(timings, "predicted_ms")) / 1e3, accepted)

    return ask, {"cache_prompt": False}


def _openai(server: _Server) -> tuple[Callable[..., _Answer], dict[str, Any]]:
    models = server.field(json.loads(server.get("/v1/models")), "data")
    if not models:
        raise EngineError(f"{server.url}/v1/models names no model; wait until the server has loaded one")

    def ask(prompt: Sequence[int], settings: dict[str, Any], max_new_tokens: int) -> _Answer:
        start = time.perf_counter()
        found = server.post("/v1/completions", {**settings, "prompt": list(prompt), "max_tokens": max_new_tokens})
        seconds = time.perf_counter() - start
        return _Answer(int(server.field(server.field(found, "usage"), "completion_tokens")), seconds)

    return ask, {"model": server.field(models[0], "id")}


def _choice(sampling: Sampling) -> dict[str, Any]:
    """Greedy is asked for twice: some servers replace a temperature of 0 by their own default."""
    if sampling.temperature <= 0:
        return {"temperature": 0.0, "top_k": 1}
    chosen: dict[str, Any] = {"temperature": sampling.temperature, "top_p": sampling.top_p}
    return {**chosen, "top_k": sampling.top_k} if sampling.top_k else chosen


def _told(answers: Sequence[_Answer]) -> tuple[float | None, float | None]:
    """Acceptance lengths, pooled and as a mean of answers, from what the server said of each answer."""
    counted = [answer for answer in answers if answer.num_accepted is not None and answer.num_forwards > 0]
    if not counted:
        return None, None
    pooled = sum(a.num_tokens - 1 for a in counted) / sum(a.num_forwards for a in counted)
    return pooled, sum((a.num_tokens - 1) / a.num_forwards for a in counted) / len(counted)


def _between(before: dict[str, float] | None, after: dict[str, float] | None) -> tuple[float | None, float | None]:
    if before is None or after is None or after["drafts"] <= before["drafts"]:
        return None, None
    return 1 + (after["accepted"] - before["accepted"]) / (after["drafts"] - before["drafts"]), None


def _summed_up(
    engine: str, url: str, answers: Sequence[_Answer], timing: str, lengths: tuple[float | None, float | None]
) -> Served:
    pooled, by_response = lengths
    missing = ["acceptance by slot", "equality with the target alone", "speed without the drafter on this server"]
    missing += ["acceptance length as a mean of answers"] if by_response is None else []
    missing += ["acceptance length, which this server does not tell: does it have a drafter?"] if pooled is None else []
    seconds = sum(answer.seconds for answer in answers)
    num_tokens = sum(answer.num_tokens for answer in answers)
    return Served(
        engine=engine,
        url=url,
        num_prompts=len(answers),
        num_tokens=num_tokens,
        tokens_per_s=num_tokens / max(seconds, 1e-9),
        timing=timing,
        acceptance_length=pooled,
        acceptance_length_by_response=by_response,
        not_measured=tuple(missing),
    )


def _counters(server: _Server) -> dict[str, float] | None:
    """vLLM's counters, summed over engines; None where there are none."""
    try:
        text = server.get("/metrics")
    except EngineError:
        return None
    found = {name: pattern.findall(text) for name, pattern in COUNTERS.items()}
    return {name: sum(map(float, values)) for name, values in found.items()} if all(found.values()) else None


class _Server:
    """An address that is talked to directly, without proxies."""

    def __init__(self, url: str, timeout_s: float) -> None:
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise EngineError(f"--url is {url!r}, which is no address of a server; give one like http://127.0.0.1:8080")
        self.url, self._timeout_s = url.rstrip("/").removesuffix("/v1"), timeout_s
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def get(self, path: str) -> str:
        return self._send(urllib.request.Request(self.url + path), KNOCK_S)

    def post(self, path: str, body: dict[str, Any]) -> Any:
        headers = {"Content-Type": "application/json"}
        text = self._send(
            urllib.request.Request(self.url + path, json.dumps(body).encode(), headers, method="POST"), self._timeout_s
        )
        try:
            return json.loads(text)
        except ValueError:
            raise EngineError(f"{self.url}{path} did not answer in JSON but {text[:80]!r}") from None

    def field(self, found: Any, name: str) -> Any:
        if not isinstance(found, dict) or name not in found:
            raise EngineError(f"an answer of {self.url} lacks {name!r}; is this the engine that --engine says?")
        return found[name]

    def _send(self, request: urllib.request.Request, timeout_s: float) -> str:
        try:
            with self._opener.open(request, timeout=timeout_s) as response:
                return str(response.read().decode("utf-8", "replace"))
        except urllib.error.HTTPError as error:
            said = error.read(200).decode("utf-8", "replace")
            raise EngineError(f"{request.full_url} answered {error.code} {error.reason}: {said}") from None
        except TimeoutError:
            raise EngineError(
                f"{request.full_url} did not answer within {timeout_s:g} s; is the server stuck?"
            ) from None
        except (OSError, http.client.HTTPException) as error:
            reason = error.reason if isinstance(error, urllib.error.URLError) else error
            if isinstance(reason, TimeoutError):
                reason = f"no answer within {timeout_s:g} s"
            raise EngineError(f"{request.full_url} cannot be reached ({reason}); is the server running?") from None
