"""Where in the rendered text the model itself speaks, found by rendering prefixes, never by a family's pattern.

What a server does is the definition. For an assistant turn it renders the messages before it with the generation
prompt, and the model continues: so the turn starts where that prompt ends, and whatever the prompt supplies (a header,
an empty think block) is not supervised. The turn stops after the end-of-turn token, before anything that only the
template adds.

A template may rewrite history, for example drop earlier reasoning. Then the text that the model wrote in an earlier
turn does not stand in the rendering of the whole conversation, and no single text shows every turn as it was
generated. Such a conversation becomes several renderings, each of them what the server saw at one turn, so that every
turn is supervised exactly once and in its own context. Templates that only append give one rendering.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from draftsmith.data.rejection import RowError

Messages = Sequence[dict[str, Any]]
Render = Callable[[Messages, bool], str]  # (messages, add_generation_prompt) -> text; raises RowError

UNLOCATED = "an assistant turn cannot be located"
ANSWER = "zqAnswerProbeqz"
QUESTION = "zqQuestionProbeqz"


@dataclass(frozen=True)
class Rendering:
    """`text` as the server saw it at the turn `messages[last]`; `spans` are [start, stop) in characters, in order.

    `verbatim`: the text starts with what the template renders for messages[:last + 1]. `marked`: spans that the
    template's generation markers allow, None if it has none.
    """

    text: str
    spans: tuple[tuple[int, int], ...]
    ends: tuple[int, ...]
    last: int
    verbatim: bool = True
    marked: tuple[tuple[int, int], ...] | None = None


@dataclass(frozen=True)
class Closing:
    """How the template opens and closes an assistant turn.

    opening: the generation prompt. tail: what stands after the text of a final turn. end: the part of the tail that
    the model generates. follow: where the tail is blank, what closes the turn is the next turn's first special token,
    with the blanks before it. header, marker: of opening and end what no text may hold, nothing if they are plain text.
    """

    opening: str
    tail: str
    end: str
    follow: str
    header: str
    marker: str


@dataclass(frozen=True)
class _Turn:
    """One turn as generated: the model wrote text[start:stop]; text[end:stop] is the end-of-turn token."""

    text: str
    start: int
    end: int
    stop: int
    verbatim: bool = True


def locate_turns(
    render: Render, closing: Closing, special_tokens: Sequence[str], messages: Messages
) -> list[Rendering]:
    """Renderings in which every assistant turn is supervised exactly once, earlier turns first. Raises RowError."""
    positions = [position for position, message in enumerate(messages) if message["role"] == "assistant"]
    if not positions:
        raise RowError("no assistant turn", f"roles: {', '.join(message['role'] for message in messages)}")
    if positions[0] == 0:
        raise RowError("the assistant speaks first", "there is no prompt that it answers")
    _check_markers(closing, messages)
    renderings: list[Rendering] = []
    for position in reversed(positions):
        turn = _generated_turn(render, closing, special_tokens, messages, position)
        later = renderings[-1] if renderings else None
        if later is not None and later.text.startswith(turn.text[: turn.stop]):
            spans, ends = ((turn.start, turn.stop), *later.spans), (turn.end, *later.ends)
            renderings[-1] = Rendering(later.text, spans, ends, later.last, later.verbatim)
        else:
            renderings.append(Rendering(turn.text, ((turn.start, turn.stop),), (turn.end,), position, turn.verbatim))
    return renderings[::-1]


def _check_markers(closing: Closing, messages: Messages) -> None:
    """Refuse texts that hold what only a template writes: they would become real turns and ends of turns."""
    for position, message in enumerate(messages):
        text = message["content"]
        if closing.header and closing.header in text:
            raise RowError("the template is applied twice", f"message {position} holds {closing.header!r}")
        if closing.marker and closing.marker in text and message["role"] == "assistant":
            raise RowError("an answer holds the end-of-turn token", f"message {position} holds {closing.marker!r}")


def locate_in_text(text: str, markers: tuple[str, str], *, cut: bool) -> Rendering:
    """The answers of a text that is rendered already, each from its opening to its end. Raises RowError.

    With `cut` the last answer need not end.
    """
    opening, end = markers
    if not opening.strip() or not end.strip():
        raise RowError("answers in a text cannot be told", "the template opens or ends them with nothing: give markers")
    spans, ends = [], []
    place = text.find(opening)
    while place >= 0:
        start = place + len(opening)
        place, close = text.find(opening, start), text.find(end, start)
        last = place < 0
        if close < 0 and last and cut:
            close = stop = len(text)
        elif close < 0 or (not last and close > place):
            raise RowError("no end-of-turn token", f"the answer at character {start} does not end with {end!r}")
        else:
            stop = close + len(end)
        spans.append((start, stop))
        ends.append(close)
    if not spans:
        raise RowError("no assistant turn", f"the text holds no {opening!r}")
    return Rendering(text, tuple(spans), tuple(ends), last=0)


def find_closing(render: Render, special_tokens: Sequence[str], bos_token: str | None) -> Closing:
    """Learn from a probe conversation how the template closes a turn. Raises RowError if it does not render one."""
    asked: Messages = [{"role": "user", "content": QUESTION}]
    answered = [*asked, {"role": "assistant", "content": ANSWER}]
    final = render(answered, False)
    if final.count(ANSWER) != 1:
        raise RowError("the template does not render an assistant's text", f"it gives {final!r}")
    tail = final.partition(ANSWER)[2]
    try:
        continued = render([*answered, {"role": "user", "content": "?"}], False).partition(ANSWER)[2]
    except RowError:  # a template for a single exchange: the final rendering is all there is
        continued = ""
    opening = _difference(render(asked, True), render(asked, False))
    opener = next((piece for piece in pieces(final, special_tokens)[1::2] if piece != bos_token), None)
    end = _generated_end(tail, continued, special_tokens, opener)
    header, marker = (
        text if len(pieces(text, special_tokens)) > 1 else ""
        for text in (opening.strip().partition("\n")[0], end.strip())
    )
    return Closing(opening, tail, end, _leading_special(continued, special_tokens), header, marker)


def pieces(text: str, special_tokens: Sequence[str]) -> list[str]:
    """The text cut at special tokens: plain text at even places, special tokens at odd ones."""
    pattern = _any_of(tuple(special_tokens))
    return pattern.split(text) if pattern else [text]


@functools.cache
def _any_of(special_tokens: tuple[str, ...]) -> re.Pattern[str] | None:
    known = sorted((token for token in special_tokens if token.strip()), key=len, reverse=True)
    return re.compile(f"({'|'.join(re.escape(token) for token in known)})") if known else None


def _generated_end(tail: str, continued: str, special_tokens: Sequence[str], opener: str | None) -> str:
    """The part of a final turn's tail that the model generates, given what follows the same turn amid a conversation.

    Usually the tail without its last blanks. If the conversation continues differently, what both share is the end of
    the turn and the rest is the template's (Phi closes a whole conversation with an extra token, Command R always
    opens the next turn, with the token that opened the first); if they share nothing, the final tail is what was
    generated and history is rewritten (gpt-oss).
    """
    end = tail.rstrip()
    if continued.startswith(end):
        return end
    shared = _common(tail, continued, special_tokens)
    return (shared.partition(opener)[0] if opener else shared).rstrip() or end


def _common(text: str, other: str, special_tokens: Sequence[str]) -> str:
    """What both texts start with, cut where a special token or a stretch of plain text ends."""
    common = ""
    for piece, opposite in zip(pieces(text, special_tokens), pieces(other, special_tokens), strict=False):
        if piece != opposite:
            break
        common += piece
    return common


def _difference(longer: str, shorter: str) -> str:
    """What is left of `longer` where it stops being like `shorter`."""
    alike = zip(longer, shorter, strict=False)
    return longer[next((i for i, (one, other) in enumerate(alike) if one != other), len(shorter)) :]


def _leading_special(text: str, special_tokens: Sequence[str]) -> str:
    """The blanks and the special token that `text` starts with, or nothing."""
    first = pieces(text, special_tokens)[:2]
    return "".join(first) if len(first) == 2 and not first[0].strip() else ""


def _generated_turn(
    render: Render, closing: Closing, special_tokens: Sequence[str], messages: Messages, position: int
) -> _Turn:
    prompt = render(messages[:position], True)
    text = render(messages[: position + 1], False)
    text, end, stop = _close(render, closing, special_tokens, messages, position, text)
    if text.startswith(prompt):
        turn = _Turn(text, len(prompt), end, stop)
    else:
        turn = _after_prompt(render, special_tokens, messages, position, prompt, _Turn(text, 0, end, stop))
    if turn.end <= turn.start:
        raise RowError(UNLOCATED, f"the template renders nothing for message {position}")
    shown = turn.text[max(0, turn.start - len(closing.opening)) : turn.end]
    if not _shows(shown, messages[position]["content"]):
        raise RowError("the template drops a part of an answer", f"message {position} becomes {shown[-60:]!r}")
    _check_nothing_lost(messages[position], position, shown)
    if closing.marker and turn.text.find(closing.marker, turn.start, turn.end) >= 0:
        raise RowError("a turn goes on after its end", f"message {position} becomes {turn.text[turn.start :][:80]!r}")
    supplied = closing.opening.rstrip().rpartition("\n")[2]
    if supplied and turn.text[turn.start : turn.end].lstrip().startswith(supplied):
        raise RowError("an answer repeats what the prompt supplies", f"message {position} starts with {supplied!r}")
    return turn


def _check_nothing_lost(message: dict[str, Any], position: int, shown: str) -> None:
    """Tool calls and reasoning stand in the turn; what a template ignores cannot be learned."""
    if any(not _shows(shown, thought) for thought in _reasoning(message)):
        raise RowError("the template drops the reasoning", f"that of message {position}")
    for call in message.get("tool_calls") or []:
        name = call["function"]["name"] if "function" in call else ""
        if not name or not _shows(shown, name):
            raise RowError("the template drops a tool call", f"message {position} calls {name!r}")


def _close(
    render: Render, closing: Closing, special_tokens: Sequence[str], messages: Messages, position: int, text: str
) -> tuple[str, int, int]:
    """(text, where the end-of-turn token starts, where it stops); the text grows if the next turn closes this one."""
    if closing.end:
        if text.endswith(closing.tail):
            end = len(text) - len(closing.tail)
            return text, end, end + len(closing.end)
        written = text.removesuffix(closing.tail[len(closing.end) :]).rstrip()
        last = pieces(written, special_tokens)[-2:-1]
        if last and written.endswith(last[0]):  # another kind of turn, such as a tool call, closes with another token
            return text, len(written) - len(last[0]), len(written)
        raise RowError(UNLOCATED, f"message {position} does not end with {closing.end!r} as the template's turns do")
    follow = closing.follow
    if position + 1 < len(messages) and messages[position + 1]["role"] != "user":
        longer = render(messages[: position + 2], False)
        follow = _leading_special(longer.removeprefix(text), special_tokens) if longer.startswith(text) else ""
    if not follow:
        raise RowError("no end-of-turn token", f"the template closes message {position} with nothing to generate")
    return text + follow, len(text), len(text) + len(follow)


def _after_prompt(
    render: Render, special_tokens: Sequence[str], messages: Messages, position: int, prompt: str, turn: _Turn
) -> _Turn:
    """The turn after a generation prompt that the template does not keep as it was, such as an opened think block.

    Rendering a probe in place of the text shows where the text starts. If prompt and probe come to the same place, the
    server saw the prompt and then the message's own text, of which the template may have cut the front.
    """
    probe = ANSWER
    while probe in prompt:  # somebody may have said just that
        probe += "q"
    probed = render([*messages[:position], {"role": "assistant", "content": probe}], False)
    header = probed.partition(probe)[0]
    opened = _opened_by_model(prompt, header, special_tokens)
    if probe not in probed or not turn.text.startswith(header) or opened is None:
        raise RowError(UNLOCATED, f"message {position} does not follow the generation prompt's {prompt[-40:]!r}")
    message = messages[position]
    written = turn.text[len(header) : turn.end]
    content = message["content"]
    supplied = prompt[len(header) :] if prompt.startswith(header) else ""
    if content.strip() and content.strip() not in written and content.strip().endswith(written.strip()):
        written = content
    if supplied.strip() and content.lstrip().startswith(supplied.split()[0]) and not content.startswith(supplied):
        raise RowError("an answer contradicts the prompt", f"the prompt for message {position} gives {supplied!r}")
    if any(not _shows(written, thought) for thought in _reasoning(message)):
        raise RowError("the template drops the reasoning", f"message {position} was not written after {prompt[-40:]!r}")
    # Some rows keep the block's opening in the text although the prompt supplies it; the server saw it once.
    written = opened + written.removeprefix(supplied)
    end = len(prompt) + len(written)
    closed = prompt + written + turn.text[turn.end : turn.stop]
    return _Turn(closed, len(prompt), end, len(closed), verbatim=False)


def _opened_by_model(prompt: str, header: str, special_tokens: Sequence[str]) -> str | None:
    """What of the rendered turn's header the model itself writes after the prompt; None if they are different places.

    Nothing, if the prompt is the header and more, or if both come to the same marker after an earlier message was
    rendered differently (a system text moves to the last question). If they differ only in special tokens at their
    ends, the prompt supplies a block that history does not keep, and the model opens the one that history shows.
    """
    if prompt.startswith(header):
        return ""
    marker = "".join(pieces(header, special_tokens)[-2:])
    if marker.strip() and len(marker) < len(header) and prompt.endswith(marker):
        return ""
    common = _common(header, prompt, special_tokens)
    opened, supplied = header[len(common) :], prompt[len(common) :]
    plain = "".join([*pieces(opened, special_tokens)[::2], *pieces(supplied, special_tokens)[::2]])
    return None if plain.strip() else opened


def _reasoning(message: dict[str, Any]) -> list[str]:
    names = ("reasoning_content", "reasoning", "thinking")
    return [message[name] for name in names if isinstance(message.get(name), str)]


def _shows(shown: str, text: str) -> bool:
    """Whether the text stands there, blanks apart: templates trim, and put reasoning on lines of its own."""
    return text in shown or _squeeze(text) in _squeeze(shown)


def _squeeze(text: str) -> str:
    return "".join(text.split())
