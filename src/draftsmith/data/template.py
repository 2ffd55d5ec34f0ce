"""A conversation becomes token ids and a loss mask, with a tokenizer's own chat template.

The rendered text is tokenised once and as a whole, without adding special tokens, because the template writes them.
A token is supervised if its first character lies in a span that the model generates. So a token that merges the end
of a prompt with the start of an answer is not supervised: the server cuts there and the model never generates it.

A template with {% generation %} markers also says which part of a turn to train on. The markers can only narrow what
is supervised, never widen it: some wrap the header, which the server supplies. The end-of-turn token of a turn that
has a marked part is always supervised, because a drafter that never learns to stop is of no use.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from jinja2 import TemplateError

from draftsmith.data.places import Places, Tokens, within
from draftsmith.data.rejection import RowError
from draftsmith.data.turns import Closing, Messages, Render, Rendering, find_closing, locate_in_text, locate_turns
from draftsmith.errors import ModelError
from draftsmith.records import Conversation, RenderedText, TokenizedSample

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Chat = Conversation | RenderedText
NO_TOKEN = "no supervised token"
# What foreign template code raises on rows it was not written for.
TEMPLATE_ERRORS = (TemplateError, TypeError, ValueError, KeyError, AttributeError, IndexError)

PROBE_TOOL = {
    "type": "function",
    "function": {
        "name": "probe",
        "description": "Probes.",
        "parameters": {"type": "object", "properties": {}, "required": []},
    },
}


class ChatTemplate:
    """A tokenizer's chat template with fixed arguments, e.g. {"enable_thinking": False}."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        template_kwargs: Mapping[str, Any] | None = None,
        *,
        text_markers: tuple[str, str] | None = None,
    ) -> None:
        """`text_markers`: what opens and what ends an answer in rendered texts; by default as the template does it.

        Raises ModelError if the tokenizer has no usable chat template or gives no character offsets.
        """
        name = tokenizer.name_or_path or type(tokenizer).__name__
        if not tokenizer.chat_template:
            raise ModelError(
                f"tokenizer {name} has no chat template (is it a base model?); use an instruction-tuned "
                "target, or set tokenizer.chat_template and save the tokenizer with the model"
            )
        if not tokenizer.is_fast:
            raise ModelError(f"tokenizer {name} gives no character offsets; save it as a fast one (tokenizer.json)")
        self.tokenizer = tokenizer
        self.template_kwargs = dict(template_kwargs or {})
        self._special_tokens = tuple(token.content for token in tokenizer.added_tokens_decoder.values())
        self._tokens = Tokens(tokenizer.backend_tokenizer)
        self._closings: dict[bool, Closing] = {}
        self._text_markers = text_markers
        try:
            self._closing(())
        except RowError:
            try:  # a template that is only for calling tools
                self._closing((PROBE_TOOL,))
            except RowError as error:
                reason = error.detail or error.reason
                raise ModelError(f"the chat template of tokenizer {name} fails on two plain turns: {reason}") from None

    @property
    def _markers(self) -> tuple[str, str]:
        if self._text_markers is not None:
            return self._text_markers
        closing = self._closing(())
        return closing.opening, closing.end or closing.follow

    @property
    def template_sha256(self) -> str:
        return template_sha256(self.tokenizer, self.template_kwargs)

    @property
    def tokenizer_sha256(self) -> str:
        return tokenizer_sha256(self.tokenizer)

    def render(self, conversation: Conversation) -> list[Rendering]:
        """What the server saw at the conversation's assistant turns, see `turns`. Raises RowError."""
        return self._locate(conversation, {})

    def tokenize(self, conversation: Conversation) -> tuple[TokenizedSample, ...]:
        """The conversation's samples: one, or more if the template rewrites history. All carry the conversation's id.

        Raises RowError for a row that the template refuses, or in which a turn cannot be located.
        """
        [outcome] = self.tokenize_all([conversation])
        if isinstance(outcome, RowError):
            raise outcome
        return outcome

    def tokenize_all(self, chats: Sequence[Chat]) -> list[tuple[TokenizedSample, ...] | RowError]:
        """For each chat its samples, or why there are none; rendered and tokenised together, which is faster."""
        found = self._render_all(chats)
        texts = [rendering.text for outcome in found if not isinstance(outcome, RowError) for rendering in outcome]
        encoded = iter(self._tokens.encode(texts))
        outcomes: list[tuple[TokenizedSample, ...] | RowError] = []
        for chat, outcome in zip(chats, found, strict=True):
            if isinstance(outcome, RowError):
                outcomes.append(outcome)
                continue
            samples = tuple([self._sample(chat, rendering, *next(encoded)) for rendering in outcome])
            none = not any(sample.loss_mask.any() for sample in samples)
            outcomes.append(
                RowError(NO_TOKEN, "the template's generation markers leave out every turn") if none else samples
            )
        return outcomes

    def _render_all(self, chats: Sequence[Chat]) -> list[list[Rendering] | RowError]:
        prefixes = self._prefixes([chat for chat in chats if isinstance(chat, Conversation)])
        found: list[list[Rendering] | RowError] = []
        for chat in chats:
            try:
                if isinstance(chat, RenderedText):
                    found.append([locate_in_text(chat.text, self._markers, cut=chat.truncated)])
                else:
                    found.append(self._mark(chat, self._locate(chat, prefixes.get(id(chat), {}))))
            except RowError as error:
                found.append(error)
        return found

    def _locate(self, chat: Conversation, known: dict[tuple[int, bool], str]) -> list[Rendering]:
        render = self._renderer(chat.tools)

        def render_prefix(messages: Messages, add_generation_prompt: bool) -> str:
            own = len(messages) <= len(chat.messages) and messages[-1] is chat.messages[len(messages) - 1]
            text = known.get((len(messages), add_generation_prompt)) if own else None
            return render(messages, add_generation_prompt) if text is None else text

        return locate_turns(render_prefix, self._closing(chat.tools), self._special_tokens, chat.messages)

    def _prefixes(self, chats: Sequence[Conversation]) -> dict[int, dict[tuple[int, bool], str]]:
        """What `turns` will ask for first, rendered without the tokenizer's preparations, which cost more than that.

        Only for messages of texts, for which those change nothing. What is not here, or raises, is rendered later.
        """
        compiled = _compiled(self.tokenizer.get_chat_template())
        if compiled is None:
            return {}
        settings = {**self.tokenizer.special_tokens_map, **self.template_kwargs, "tools": None, "documents": None}
        known: dict[int, dict[tuple[int, bool], str]] = {}
        for chat in chats:
            if chat.tools or not all(_is_plain(message) for message in chat.messages):
                continue
            messages = list(chat.messages)
            places = [place for place, message in enumerate(messages) if place and message["role"] == "assistant"]
            asked = [(place + extra, not extra) for place in places for extra in (0, 1)]
            with contextlib.suppress(*TEMPLATE_ERRORS):
                known[id(chat)] = {
                    (n, prompt): compiled.render(messages=messages[:n], add_generation_prompt=prompt, **settings)
                    for n, prompt in asked
                }
        return known

    def _closing(self, tools: tuple[dict[str, Any], ...]) -> Closing:
        """How turns close, found once without tools and once with the first that come: some have another template."""
        if bool(tools) not in self._closings:
            found = find_closing(self._renderer(tools), self._special_tokens, self.tokenizer.bos_token)
            self._closings[bool(tools)] = found
        return self._closings[bool(tools)]

    def _sample(
        self, chat: Chat, rendering: Rendering, input_ids: npt.NDArray[np.int32], places: Places
    ) -> TokenizedSample:
        loss_mask = np.zeros(len(input_ids), dtype=np.bool_)
        for (start, stop), end in zip(rendering.spans, rendering.ends, strict=True):
            first, close, after = places.first_from(start), places.first_from(end), places.first_from(stop)
            spoken = True if rendering.marked is None else within(places, rendering.marked, first, close)
            loss_mask[first:close] = spoken
            if loss_mask[first:close].any():
                # The model did not close a turn that was cut at a limit, so its closing token teaches nothing true.
                loss_mask[close:after] = not chat.truncated
        return TokenizedSample(id=chat.id, input_ids=input_ids, loss_mask=loss_mask)

    def _mark(self, chat: Conversation, renderings: list[Rendering]) -> list[Rendering]:
        """The renderings with the spans that the template's generation markers allow; as they are if it has none."""
        tools = list(chat.tools) or None
        template = self.tokenizer.get_chat_template(tools=tools)
        if not _has_markers(template):
            return renderings
        return [
            self._marked(chat, rendering, template) if rendering.verbatim else rendering for rendering in renderings
        ]

    def _marked(self, chat: Conversation, rendering: Rendering, template: str) -> Rendering:
        from transformers.utils.chat_template_utils import render_jinja_template  # slow to import

        [text], [spans] = render_jinja_template(
            [list(chat.messages[: rendering.last + 1])],
            tools=list(chat.tools) or None,
            chat_template=template,
            return_assistant_tokens_mask=True,
            **{**self.tokenizer.special_tokens_map, **self.template_kwargs},
        )
        if not rendering.text.startswith(text):
            raise RowError("generation markers do not fit", "the template renders the same messages differently")
        return replace(
            rendering, marked=(*((int(start), int(stop)) for start, stop in spans), (len(text), sys.maxsize))
        )

    def _renderer(self, tools: tuple[dict[str, Any], ...]) -> Render:
        def render(messages: Messages, add_generation_prompt: bool) -> str:
            try:
                return self._apply([list(messages)], tools, add_generation_prompt)[0]
            except TEMPLATE_ERRORS as error:
                raise RowError("the chat template refuses the row", f"{type(error).__name__}: {error}") from None

        return render

    def _apply(
        self, chats: list[list[dict[str, Any]]], tools: tuple[dict[str, Any], ...], add_generation_prompt: bool
    ) -> list[str]:
        texts: list[str] = self.tokenizer.apply_chat_template(
            chats,
            tools=list(tools) or None,
            tokenize=False,
            add_generation_prompt=add_generation_prompt,
            **self.template_kwargs,
        )
        return texts


def template_sha256(tokenizer: PreTrainedTokenizerBase, template_kwargs: Mapping[str, Any]) -> str:
    """Depends on the template's text and its arguments."""
    known = [tokenizer.chat_template, dict(template_kwargs), tokenizer.special_tokens_map]
    return hashlib.sha256(json.dumps(known, sort_keys=True, default=str).encode()).hexdigest()


def tokenizer_sha256(tokenizer: PreTrainedTokenizerBase) -> str:
    """Depends on everything that decides which ids a text gets."""
    return hashlib.sha256(tokenizer.backend_tokenizer.to_str().encode()).hexdigest()


def _is_plain(message: dict[str, Any]) -> bool:
    """Role and text, of which the tokenizer hands on exactly that to the template."""
    return message.keys() == {"role", "content"} and type(message["role"]) is type(message["content"]) is str


@functools.cache
def _has_markers(template: str) -> bool:
    return re.search(r"\{%-?\s*generation\s*-?%\}", template) is not None


@functools.cache
def _compiled(template: str) -> Any:
    """The template as the tokenizer compiles it, None where its library keeps that elsewhere."""
    from transformers.utils import chat_template_utils  # slow to import

    try:
        return chat_template_utils._compile_jinja_template(template)
    except AttributeError:
        return None


def num_anchors(loss_mask: npt.NDArray[np.bool_]) -> int:
    """How many positions a have loss_mask[a] and loss_mask[a + 1]: the places where a block can be trained."""
    return int(np.count_nonzero(loss_mask[:-1] & loss_mask[1:]))
