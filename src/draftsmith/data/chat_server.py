"""Answers by any server that speaks the OpenAI protocol: bounded concurrency, and a defined end for each fault.

    no connection, no answer in time, 408, 425, 429, 5xx, an answer that cannot be read     tried again, later and later
    400, 413, 422                                                    the row is left out, counted and shown
    500 whatever is tried, at one row                                that row is left out; at 3 in a row, the end
    401, 403, 404, other                                             the end: no row would fare better
    finish_reason length                                             the row is marked as truncated

A request is a plain call that blocks. Inside it runs in an event loop of its own, because only that bounds all of it:
the timeouts of a blocking client start anew at every byte, and a server may drip bytes for hours.

The key travels in one header and stands nowhere else: not in files, not in messages, not in what `made_with` records.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import anyio
import httpx2

from draftsmith.data.answers import Asked
from draftsmith.data.regenerate import AnswerAll, Answered, Dialogue
from draftsmith.data.rejection import RowError
from draftsmith.errors import ModelError
from draftsmith.flow import as_completed
from draftsmith.keyed import keyed_generator

TRANSIENT = {408, 425, 429, *range(500, 600)}
ROW_FAULTS = {400, 413, 422}
MOST_FAILING = 3  # rows in a row at which the server fails: then it is not the rows
LONGEST_PAUSE_S = 60.0
CONNECT_S = 10.0
RESUME = "what was answered is kept, and the same command goes on"


@dataclass(frozen=True)
class ServerSettings:
    """Where to ask, and how patiently. `attempts` counts all tries of a request; `timeout_s` is for all of one try."""

    url: str
    model: str
    api_key: str | None = field(default=None, repr=False)
    concurrency: int = 16
    attempts: int = 6
    timeout_s: float = 600.0
    first_pause_s: float = 1.0


@dataclass(frozen=True)
class AnswerSettings:
    """What decides an answer. `template_kwargs` go to the server's chat template."""

    max_new_tokens: int
    temperature: float = 0.0
    seed: int = 0
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Completion:
    """One answer as a message; reasoning stands beside the content where the server tells it apart."""

    message: dict[str, Any]
    truncated: bool
    num_tokens: int


class _TryAgainError(Exception):
    """A fault that may pass. `pause_s` is what the server asks for."""

    def __init__(self, why: str, *, pause_s: float = 0.0, status: int | None = None) -> None:
        super().__init__(why)
        self.pause_s = pause_s
        self.status = status


class ChatServer:
    """A client of one server; may be used by several threads."""

    def __init__(self, settings: ServerSettings, *, sleep: Callable[[float], None] = time.sleep) -> None:
        """Raises ModelError if the address cannot be one."""
        self.settings = settings
        self._sleep = sleep
        self._num_failing = 0
        self._url = _checked(settings.url)
        self._certificates = httpx2.create_ssl_context()
        try:
            self._headers = httpx2.Headers({"Authorization": f"Bearer {settings.api_key}"} if settings.api_key else {})
        except (ValueError, UnicodeError):  # its message would hold the key
            raise ModelError("the API key in the environment holds letters that no header can; set it again") from None

    def check(self) -> None:
        """Raises ModelError if the server is not there, refuses us, or says that it serves other models only."""
        try:
            found = self._request("GET", "/models", None)
        except RowError:
            return
        except _NotThereError:
            return  # not every server lists its models
        listed = found.get("data") if isinstance(found, dict) else None
        names = [entry.get("id") for entry in listed if isinstance(entry, dict)] if isinstance(listed, list) else []
        if names and self.settings.model not in names:
            shown = ", ".join(map(str, names[:5]))
            raise ModelError(f"{self._url} serves {shown}, not {self.settings.model}; give one of these as --target")

    def complete(self, messages: Sequence[Mapping[str, Any]], wanted: AnswerSettings, name: str) -> Completion:
        """Raises RowError if the server refuses this conversation, ModelError if it cannot be used at all."""
        body: dict[str, Any] = {
            "model": self.settings.model,
            "messages": list(messages),
            "max_tokens": wanted.max_new_tokens,
            "temperature": wanted.temperature,
        }
        if wanted.temperature > 0:
            drawn = keyed_generator(wanted.seed, "answer", name).integers(2**31)
            body |= {"top_p": 1.0, "seed": int(drawn)}
        if wanted.template_kwargs:
            body["chat_template_kwargs"] = dict(wanted.template_kwargs)
        try:
            found: Completion = self._request("POST", "/chat/completions", body, _read(wanted.max_new_tokens), name)
        except _NotThereError as error:
            raise ModelError(f"{error}; is {self.settings.model} its model, and does --server end in /v1?") from None
        return found

    def _request(
        self,
        method: str,
        path: str,
        body: dict[str, Any] | None,
        read: Callable[[Any], Any] = lambda found: found,
        name: str = "",
    ) -> Any:
        for attempt in range(1, self.settings.attempts + 1):
            try:
                found = read(self._once(method, path, body))
            except _TryAgainError as error:
                if attempt == self.settings.attempts:
                    raise self._give_up(error) from None
                self._sleep(self._pause(attempt, error.pause_s, name))
            else:
                self._num_failing = 0
                return found
        raise AssertionError("attempts is at least 1")

    def _give_up(self, error: _TryAgainError) -> Exception:
        """What a request that failed at every attempt means: one row that breaks the server, or a broken server."""
        tries = f"after {self.settings.attempts} attempts"
        if error.status == 500:
            self._num_failing += 1
            if self._num_failing < MOST_FAILING:
                return RowError("the server fails at it", f"{error}, {tries}")
        return ModelError(f"{self._url} does not answer {tries}: {error}; {RESUME}")

    def _once(self, method: str, path: str, body: dict[str, Any] | None) -> Any:
        try:
            response = anyio.run(self._whole, method, path, body)
        except TimeoutError:
            raise _TryAgainError(f"no whole answer within {self.settings.timeout_s:g} s") from None
        except httpx2.TransportError as error:
            raise _TryAgainError(self._safe(f"{type(error).__name__}: {error}")) from None
        except httpx2.HTTPError as error:
            raise _TryAgainError(self._safe(f"an answer that cannot be read: {error}")) from None
        status = response.status_code
        if status == 200:
            try:
                return response.json()
            except (ValueError, RecursionError):
                raise _TryAgainError(self._safe(f"an answer that is no JSON: {response.text[:80]!r}")) from None
        said = self._safe(f"HTTP {status}: {_first_words(response)}")
        if status in TRANSIENT:
            raise _TryAgainError(said, pause_s=_asked_pause(response), status=status)
        if status in ROW_FAULTS:
            raise RowError(f"the server refuses it (HTTP {status})", said)
        if status in (401, 403):
            have = "the API key is refused" if self.settings.api_key else "it wants an API key"
            raise ModelError(f"{self._url}: {have} ({said}); set OPENAI_API_KEY in the environment; {RESUME}")
        if status in (404, 405):
            raise _NotThereError(f"{self._url}{path}: {said}")
        raise ModelError(f"{self._url}{path} answers with {said}; give the address of its API; {RESUME}")

    async def _whole(self, method: str, path: str, body: dict[str, Any] | None) -> httpx2.Response:
        """The answer with all its bytes. Raises TimeoutError if it is not there in time, whatever has come of it."""
        timeout = httpx2.Timeout(None, connect=CONNECT_S)
        with anyio.fail_after(self.settings.timeout_s):
            async with httpx2.AsyncClient(headers=self._headers, timeout=timeout, verify=self._certificates) as client:
                return await client.request(method, self._url + path, json=body)

    def _pause(self, attempt: int, asked_s: float, name: str) -> float:
        """Twice as long every time, and not all at once: the draw spreads those who failed together."""
        spread = float(keyed_generator(attempt, "pause", name).uniform(0.75, 1.25))
        growing_s = float(self.settings.first_pause_s * 2 ** (attempt - 1))
        return min(LONGEST_PAUSE_S, max(asked_s, growing_s * spread))

    def _safe(self, text: str) -> str:
        """Servers repeat what they were sent; half of a surrogate pair cannot be shown."""
        text = text.encode("utf-8", "replace").decode()
        return text.replace(self.settings.api_key, "***") if self.settings.api_key else text


class _NotThereError(Exception):
    """The server has nothing at this address."""


def through_server(server: ChatServer, wanted: AnswerSettings) -> AnswerAll:
    """Answers made by a server, several conversations at a time, in the order in which they are done."""

    def converse(asked: Asked) -> Answered:
        dialogue = Dialogue.begin(asked)
        while not dialogue.is_over:
            messages = dialogue.ask()
            try:
                completion = server.complete(messages, wanted, dialogue.turn)
            except RowError as error:
                return dialogue.refuse(error.reason, error.detail)
            dialogue.written.append(completion.message)
            dialogue.truncated |= completion.truncated
            dialogue.num_tokens += completion.num_tokens
        return dialogue.end()

    def answer_all(todo: Sequence[Asked]) -> Iterator[Answered]:
        server.check()
        return as_completed(converse, todo, num_workers=server.settings.concurrency, name="answers")

    return answer_all


def _read(max_new_tokens: int) -> Callable[[Any], Completion]:
    """Reads an answer. Raises _TryAgainError if it is not one, RowError if this row will never get one."""

    def read(found: Any) -> Completion:
        try:
            choice = found["choices"][0]
            said, reason = choice["message"], choice.get("finish_reason")
            content = said.get("content") or ""
            thoughts = {key: said[key] for key in ("reasoning_content", "reasoning") if said.get(key)}
        except (KeyError, IndexError, TypeError, AttributeError):
            raise _TryAgainError(f"an answer without a message: {str(found)[:80]}") from None
        texts = (content, *thoughts.values())
        if not all(isinstance(text, str) for text in texts):
            raise _TryAgainError("an answer whose content is no text")
        if any("\ud800" <= letter <= "\udfff" for text in texts for letter in text):
            raise RowError("not UTF-8", "the answer holds half of a surrogate pair")
        if reason not in ("stop", "length", "eos", None):
            if reason in ("content_filter", "tool_calls", "function_call"):
                raise RowError("the answer does not end by itself", f"finish_reason {reason!r}")
            raise _TryAgainError(f"an answer that was given up: finish_reason {reason!r}")
        num_tokens = _num_tokens(found)
        truncated = reason == "length" or (reason is None and num_tokens >= max_new_tokens)
        if not content.strip() and not truncated:
            raise RowError("an empty answer", f"finish_reason {reason!r}")
        # One name for one thing; a server may tell it under two.
        kept = {"reasoning_content": next(iter(thoughts.values()))} if thoughts else {}
        return Completion({"role": "assistant", "content": content, **kept}, truncated, num_tokens)

    return read


def _num_tokens(found: Any) -> int:
    usage = found.get("usage")
    number = usage.get("completion_tokens") if isinstance(usage, dict) else 0
    return number if isinstance(number, int) else 0


def _first_words(response: httpx2.Response) -> str:
    """What the server says, in one line: the message of its JSON, or the beginning of its text."""
    text = response.text
    try:
        found = response.json()
        error = found.get("error", found)
        text = error.get("message", text) if isinstance(error, dict) else str(error)
    except (ValueError, AttributeError):
        pass
    return " ".join(str(text).split())[:200]


def _asked_pause(response: httpx2.Response) -> float:
    try:
        return max(0.0, float(response.headers.get("retry-after", "0")))
    except ValueError:  # a date
        return 0.0


def _checked(url: str) -> str:
    try:
        found = httpx2.URL(url)
    except (httpx2.InvalidURL, ValueError) as error:
        raise ModelError(
            f"--server {url!r} is no address ({error}); give one such as http://127.0.0.1:8000/v1"
        ) from None
    if found.userinfo:
        raise ModelError("--server holds a name or password; put the key into the environment as OPENAI_API_KEY")
    if found.scheme not in ("http", "https") or not found.host:
        raise ModelError(f"--server {url!r} is no address; give one such as http://127.0.0.1:8000/v1")
    return url.rstrip("/")
