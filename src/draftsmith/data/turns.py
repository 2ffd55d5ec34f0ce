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

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from draftsmith.data.readers import RowError

Messages = Sequence[dict[str, Any]]
Render = Callable[[Messages, bool], str]  # (messages, add_generation_prompt) -> text; raises RowError

UNLOCATED = "an assistant turn cannot be located"
ANSWER = "zqAnswerProbeqz"
QUESTION = "zqQuestionProbeqz"


@dataclass(frozen=True)
class Rendering:
    """`text` as the server saw it at the turn `messages[last]`; `spans` are [start, stop) in characters, in order.

    `verbatim`: the text starts with what the template renders for messages[:last + 1].
    """

    text: str
    spans: tuple[tuple[int, int], ...]
    ends: tuple[int, ...]
    last: int
    verbatim: bool = True


@dataclass(frozen=True)
class Closing:
    """How the template closes an assistant turn.

    tail: what it writes after the text of a final turn. end: the part of it that the model generates. follow: where
    the tail is blank, what closes the turn is the next turn's first special token, with the blanks before it.
    """

    tail: str
    end: str
    follow: str


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


def find_closing(render: Render, special_tokens: Sequence[str]) -> Closing:
    """Learn from a probe conversation how the template closes a turn. Raises RowError if it does not render one."""
    answered = [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": ANSWER}]
    final = render(answered, False)
    if final.count(ANSWER) != 1:
        raise RowError("the template does not render an assistant's text", f"it gives {final!r}")
    tail = final.partition(ANSWER)[2]
    try:
        continued = render([*answered, {"role": "user", "content": "?"}], False).partition(ANSWER)[2]
    except RowError:  # a template for a single exchange: the final rendering is all there is
        continued = ""
    return Closing(tail, _generated_end(tail, continued, special_tokens), _leading_special(continued, special_tokens))


def _generated_end(tail: str, continued: str, special_tokens: Sequence[str]) -> str:
    """The part of a final turn's tail that the model generates, given what follows the same turn amid a conversation.

    Usually the tail without its last blanks. If the conversation continues differently, what both share is the end of
    the turn and the rest is the template's (Phi closes a whole conversation with an extra token); if they share
    nothing, the final tail is what was generated and history is rewritten (gpt-oss).
    """
    end = tail.rstrip()
    if continued.startswith(end):
        return end
    pattern = "|".join(re.escape(token) for token in sorted(special_tokens, key=len, reverse=True))
    shared = ""
    if pattern:
        pieces = (re.split(f"({pattern})", text) for text in (tail, continued))
        for piece, other in zip(*pieces, strict=False):
            if piece != other:
                break
            shared += piece
    return shared.rstrip() or end


def _leading_special(text: str, special_tokens: Sequence[str]) -> str:
    """The blanks and the special token that `text` starts with, or nothing."""
    blanks = text[: len(text) - len(text.lstrip())]
    found = [token for token in special_tokens if token.strip() and text.startswith(token, len(blanks))]
    return blanks + max(found, key=len) if found else ""


def _generated_turn(
    render: Render, closing: Closing, special_tokens: Sequence[str], messages: Messages, position: int
) -> _Turn:
    prompt = render(messages[:position], True)
    text = render(messages[: position + 1], False)
    text, end, stop = _close(render, closing, special_tokens, messages, position, text)
    if text.startswith(prompt):
        turn = _Turn(text, len(prompt), end, stop)
    else:
        turn = _after_prompt(render, messages, position, prompt, _Turn(text, 0, end, stop))
    if turn.end <= turn.start:
        raise RowError(UNLOCATED, f"the template renders nothing for message {position}")
    return turn


def _close(
    render: Render, closing: Closing, special_tokens: Sequence[str], messages: Messages, position: int, text: str
) -> tuple[str, int, int]:
    """(text, where the end-of-turn token starts, where it stops); the text grows if the next turn closes this one."""
    if closing.end:
        if text.endswith(closing.tail):
            end = len(text) - len(closing.tail)
            return text, end, end + len(closing.end)
        stop = len(text.rstrip())
        last = [token for token in special_tokens if token.strip() and text.endswith(token, 0, stop)]
        if last:  # another kind of turn, such as a tool call, closes with another token
            return text, stop - len(max(last, key=len)), stop
        raise RowError(UNLOCATED, f"message {position} does not end with {closing.end!r} as the template's turns do")
    follow = closing.follow
    if position + 1 < len(messages) and messages[position + 1]["role"] != "user":
        longer = render(messages[: position + 2], False)
        follow = _leading_special(longer.removeprefix(text), special_tokens) if longer.startswith(text) else ""
    if not follow:
        raise RowError("no end-of-turn token", f"the template closes message {position} with nothing to generate")
    return text + follow, len(text), len(text) + len(follow)


def _after_prompt(render: Render, messages: Messages, position: int, prompt: str, turn: _Turn) -> _Turn:
    """The turn after a generation prompt that supplies what the template does not keep, such as an opened think block.

    Rendering a probe in place of the text shows where the text starts. If the prompt is that header and more, the
    server saw the prompt and then the message's own text, of which the template may have cut the front.
    """
    probed = render([*messages[:position], {"role": "assistant", "content": ANSWER}], False)
    header = probed.partition(ANSWER)[0]
    if ANSWER not in probed or not prompt.startswith(header) or not turn.text.startswith(header):
        raise RowError(UNLOCATED, f"message {position} does not follow the generation prompt's {prompt[-40:]!r}")
    written = turn.text[len(header) : turn.end]
    content = messages[position]["content"]
    if content.strip() and content.strip() not in written:
        if not content.strip().endswith(written.strip()):
            raise RowError(UNLOCATED, f"the template rewrites message {position} to {written[:40]!r}")
        # Some keep the block's opening in the text although the prompt supplies it; the server saw it once.
        written = content.removeprefix(prompt[len(header) :])
    end = len(prompt) + len(written)
    closed = prompt + written + turn.text[turn.end : turn.stop]
    return _Turn(closed, len(prompt), end, len(closed), verbatim=False)
