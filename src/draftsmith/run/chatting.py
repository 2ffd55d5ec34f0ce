"""chat(): talk to the target and see its drafter work.

Each piece of an answer shows where it came from: drafted and accepted, or the target's own token that a forward of it
always adds. In a terminal these are two colours; elsewhere accepted pieces stand between marks.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from draftsmith import evaluation
from draftsmith.config import RunConfig
from draftsmith.drafter import Drafter
from draftsmith.errors import DataError
from draftsmith.evaluation import Rule, Step
from draftsmith.export import read_drafter
from draftsmith.observe import Progress
from draftsmith.run.measuring import rule_of
from draftsmith.run.opening import set_up
from draftsmith.target import Target, load_target, load_tokenizer, resolve_device

ACCEPTED, OWN, QUIET = "bold green", "yellow", "dim"
MARKS = ("‹", "›")
YOU = "you> "
HELP = "/new forgets the conversation, /exit or Ctrl-D leaves; Ctrl-C stops an answer"


@dataclass
class Tally:
    """Tokens and forwards so far. A forward over the prompt yields the first token, and is no verification."""

    num_tokens: int = 0
    num_committed: int = 0
    num_verifications: int = 0
    seconds: float = 0.0

    def add(self, step: Step) -> None:
        self.num_tokens += len(step.tokens)
        self.num_committed += step.num_committed
        self.num_verifications += step.num_committed > 0

    def join(self, other: Tally) -> None:
        self.num_tokens += other.num_tokens
        self.num_committed += other.num_committed
        self.num_verifications += other.num_verifications
        self.seconds += other.seconds

    def __str__(self) -> str:
        text = f"{self.num_tokens} tokens"
        if self.num_verifications:
            text += f", {self.num_committed / self.num_verifications:.2f} for each of {self.num_verifications} forwards"
        return f"{text}, {self.num_tokens / max(self.seconds, 1e-9):.1f} tokens/s"


@dataclass
class Pieces:
    """Turns tokens into text as they come. Bytes of a character that is not complete yet are held back."""

    tokenizer: Any
    _shown: list[int] = field(default_factory=list)
    _held: list[int] = field(default_factory=list)

    def add(self, token: int) -> str:
        self._held.append(token)
        # With what was shown last in front, because some tokenizers drop the space before a text's first word.
        before, text = self._decode(self._shown), self._decode([*self._shown, *self._held])
        if text.endswith("\ufffd"):
            return ""
        return self._release(text[len(before) :])

    def rest(self) -> str:
        """What is still held back when nothing more comes."""
        return self._release(self._decode([*self._shown, *self._held])[len(self._decode(self._shown)) :])

    def _release(self, text: str) -> str:
        self._shown, self._held = self._held or self._shown, []
        return text

    def _decode(self, tokens: Sequence[int]) -> str:
        return str(self.tokenizer.decode(tokens, skip_special_tokens=True))


class Painter:
    """Shows pieces as they come, in two colours or with marks around what was accepted."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._marks = console.color_system is None
        self._inside = False

    def piece(self, text: str, *, accepted: bool) -> None:
        if not text:
            return
        if self._marks and accepted != self._inside:
            self._print(MARKS[0] if accepted else MARKS[1])
            self._inside = accepted
        self._print(text, ACCEPTED if accepted else OWN)

    def end(self, note: str) -> None:
        if self._inside:
            self._print(MARKS[1])
        self._inside = False
        self._print("\n")
        self.note(note)

    def note(self, text: str) -> None:
        self._console.print(Text(text, QUIET), soft_wrap=True)

    def _print(self, text: str, style: str = "") -> None:
        self._console.print(Text(text, style), end="", soft_wrap=True)
        self._console.file.flush()


@dataclass
class Chat:
    """A conversation with a target and its drafter."""

    target: Target
    drafter: Drafter
    tokenizer: Any
    painter: Painter
    rule: Rule
    max_new_tokens: int
    template: dict[str, Any]
    seed: int = 0
    messages: list[dict[str, str]] = field(default_factory=list)
    total: Tally = field(default_factory=Tally)
    _num_asked: int = 0

    def ask(self, question: str) -> None:
        """Answer one question, showing the answer as it grows. Ctrl-C stops it; what was said so far stays."""
        if not question.strip():
            raise DataError("the question is empty; there is nothing to answer")
        asked = [*self.messages, {"role": "user", "content": question}]
        prompt = evaluation.chat_prompt(self.tokenizer, asked, self.template)
        room = min(self.max_new_tokens, max(1, self.target.max_length - len(prompt)))
        tally, tokens, start = Tally(), list[int](), time.perf_counter()
        stopped = ""
        try:
            for step in self._steps(prompt, room):
                tally.add(step)
                tokens += step.tokens
        except KeyboardInterrupt:
            stopped = "stopped; "
        tally.seconds = time.perf_counter() - start
        self.total.join(tally)
        cut = len(tokens) == room and tokens[-1] not in self.target.eos_token_ids
        self.painter.end(f"{stopped}{tally}" + (f"; cut at {room} tokens, see --max-new-tokens" if cut else ""))
        answer = self.tokenizer.decode(tokens, skip_special_tokens=True)
        self.messages = [*asked, {"role": "assistant", "content": answer}]

    def _steps(self, prompt: list[int], room: int) -> Iterator[Step]:
        """Every forward's step, once its pieces are shown."""
        self._num_asked += 1
        pieces, accepted = Pieces(self.tokenizer), False
        found = evaluation.steps(
            self.drafter,
            self.target,
            [prompt],
            max_new_tokens=room,
            rule=self.rule,
            seeds=[evaluation.prompt_seed(self.seed, "chat", self._num_asked)],
        )
        for step in found:
            for place, token in enumerate(step.tokens):
                accepted = place < step.num_drafted
                self.painter.piece(pieces.add(token), accepted=accepted)
            yield step
        self.painter.piece(pieces.rest(), accepted=accepted)


def chat(run: Path, config: RunConfig, *, prompt: str | None, template: dict[str, Any]) -> None:
    """Answer `prompt`, or whatever comes from the terminal or standard input until it ends."""
    config = set_up(config)
    with Progress(f"loading {config.target.model} and its drafter"):
        tokenizer = load_tokenizer(config.target)
        target = load_target(config.target, dtype=config.eval.speed_dtype, device=resolve_device(config.device))
        drafter = read_drafter(run / "drafter").to(target.device, target.dtype)
        evaluation.check_fit(drafter, target)
    console = Console(highlight=False)
    session = Chat(
        target,
        drafter,
        tokenizer,
        Painter(console),
        rule_of(config.eval),
        config.eval.max_new_tokens,
        {**config.data.template_kwargs, **template},
        config.seed,
    )
    if prompt is not None:
        session.ask(prompt)
        return
    session.painter.note(f"{_legend(console)}; {HELP}")
    converse(session, _asker(console))
    session.painter.note(f"in all: {session.total}")


def converse(session: Chat, asker: Callable[[], str]) -> None:
    """Ask and answer until `asker` raises EOFError or the person leaves. A question that cannot be is explained."""
    while True:
        try:
            question = asker().strip()
        except EOFError:
            return
        except KeyboardInterrupt:
            session.painter.note(f"\n{HELP}")
            continue
        if question == "/exit":
            return
        if question == "/new":
            session.messages = []
        elif question:
            try:
                session.ask(question)
            except DataError as error:
                session.painter.note(f"{error}; or begin anew with /new")


def _legend(console: Console) -> str:
    if console.color_system is None:
        return f"{MARKS[0]}drafted and accepted{MARKS[1]}, the target's own"
    return "green: drafted and accepted, yellow: the target's own"


def _asker(console: Console) -> Callable[[], str]:
    """Reads questions; from a pipe they are shown as well, so that what comes out reads like a conversation."""
    if sys.stdin.isatty():
        return lambda: console.input(YOU)

    def ask() -> str:
        line = sys.stdin.readline()
        if not line:
            raise EOFError
        console.print(Text(f"{YOU}{line.rstrip()}"), soft_wrap=True)
        return line

    return ask
