"""What a template's turns look like in tokens: how an answer ends, and what shows that a template was applied twice.

Learned from the rendering of a probe conversation, never from a family's pattern. A pattern of tokens that the probe
itself shows is the template's own habit and proves nothing, so it is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from draftsmith.data.rejection import RowError
from draftsmith.data.template import PROBE_TOOL, ChatTemplate
from draftsmith.data.turns import ANSWER, QUESTION, Rendering, pieces
from draftsmith.errors import ModelError
from draftsmith.records import Conversation

Tokens = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Marks:
    """end_text: what closes an answer. end_ids: tokens that may close one. doubled: (what it shows, token pattern)."""

    end_text: str
    end_ids: frozenset[int]
    doubled: tuple[tuple[str, tuple[int, ...]], ...]


def find_marks(template: ChatTemplate, *, ends: Sequence[str] = ()) -> Marks:
    """`ends`: texts that close an answer as well. Raises ModelError if the template does not render two turns."""
    rendering = _probe(template)
    (start, stop), end = rendering.spans[-1], rendering.ends[-1]
    end_text = rendering.text[end:stop]
    known = template.tokenizer.added_tokens_decoder
    special = [token.content for token in known.values()]
    # A tool call may close with another token than an answer does; which one it is, only its template knows.
    end_ids = {index for index, token in known.items() if token.special}
    end_ids |= {_ids(template, text)[-1] for text in (end_text, *ends) if text}
    shown = np.asarray(_ids(template, rendering.text), dtype=np.int32)
    patterns = [
        (what, tuple(_ids(template, text))) for what, text in _doubled_texts(template, rendering.text, start, end_text)
    ]
    doubled = tuple(
        (what, ids)
        for what, ids in dict.fromkeys(patterns)
        # Plain text may continue in many ways; a special token stands for itself.
        if len(ids) >= 2 and _is_special(template, ids[-1], special) and not occurrences(shown, ids).size
    )
    return Marks(end_text, frozenset(end_ids), doubled)


def occurrences(tokens: Tokens, pattern: tuple[int, ...]) -> npt.NDArray[np.int64]:
    """Places where `pattern` starts in `tokens` [T]."""
    num_places = len(tokens) - len(pattern) + 1
    if num_places <= 0:
        return np.empty(0, dtype=np.int64)
    places = np.flatnonzero(tokens[:num_places] == pattern[0])
    for offset, token in enumerate(pattern[1:], start=1):
        if not places.size:
            break
        places = places[tokens[places + offset] == token]
    return places


def _doubled_texts(template: ChatTemplate, text: str, start: int, end_text: str) -> list[tuple[str, str]]:
    """Texts that a template applied once does not write, such as one turn's opening right after another's."""
    special = tuple(token.content for token in template.tokenizer.added_tokens_decoder.values())
    bos = template.tokenizer.bos_token
    opener = next((piece for piece in pieces(text, special)[1::2] if piece != bos), None)
    starts = [bos, opener, opener and text[: text.index(opener) + len(opener)]]
    headers = [_header(text[: text.index(QUESTION)], special), _header(text[:start], special)]
    inside = "a message begins with the template's own opening of a turn"
    found = [(inside, header + mark) for header in headers if header for mark in starts if mark]
    if bos:
        found.append(("the begin-of-text token stands twice", bos + bos))
    if end_text.strip():
        twice = "an answer is closed twice"
        found += [(twice, end_text + gap + end_text.lstrip()) for gap in ("", "\n")]
    return found


def _header(text: str, special: tuple[str, ...]) -> str:
    """The last special token before a message's own text, and what follows it."""
    cut = pieces(text, special)
    return "".join(cut[-2:]) if len(cut) > 1 else ""


def _is_special(template: ChatTemplate, token: int, special: list[str]) -> bool:
    return str(template.tokenizer.convert_ids_to_tokens(token)) in special


def _ids(template: ChatTemplate, text: str) -> list[int]:
    return list(template.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])


def _probe(template: ChatTemplate) -> Rendering:
    messages = ({"role": "user", "content": QUESTION}, {"role": "assistant", "content": ANSWER})
    failed = RowError("")
    for tools in ((), (PROBE_TOOL,)):  # some templates are only for calling tools
        try:
            rendering = template.render(Conversation("probe", messages, tools))[-1]
        except RowError as error:
            failed = error
            continue
        if QUESTION in rendering.text:
            return rendering
    name = template.tokenizer.name_or_path or type(template.tokenizer).__name__
    raise ModelError(f"the chat template of tokenizer {name} does not show a question: {failed.detail}") from None
