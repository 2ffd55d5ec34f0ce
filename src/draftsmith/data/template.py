"""A conversation becomes token ids and a loss mask, with a tokenizer's own chat template.

The rendered text is tokenised once and as a whole, without adding special tokens, because the template writes them.
A token is supervised if its first character lies in a span that the model generates. So a token that merges the end
of a prompt with the start of an answer is not supervised: the server cuts there and the model never generates it.

A template with {% generation %} markers also says which part of a turn to train on. The markers can only narrow what
is supervised, never widen it: some wrap the header, which the server supplies. The end-of-turn token of a turn that
has a marked part is always supervised, because a drafter that never learns to stop is of no use.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from jinja2 import TemplateError

from draftsmith.data.readers import RowError
from draftsmith.data.turns import Closing, Messages, Render, Rendering, find_closing, locate_turns
from draftsmith.errors import ModelError
from draftsmith.records import Conversation, TokenizedSample

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

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

    def __init__(self, tokenizer: PreTrainedTokenizerBase, template_kwargs: Mapping[str, Any] | None = None) -> None:
        """Raises ModelError if the tokenizer has no usable chat template or gives no character offsets."""
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
        self._closings: dict[bool, Closing] = {}
        try:
            self._closing(())
        except RowError:
            try:  # a template that is only for calling tools
                self._closing((PROBE_TOOL,))
            except RowError as error:
                reason = error.detail or error.reason
                raise ModelError(f"the chat template of tokenizer {name} fails on two plain turns: {reason}") from None

    @property
    def template_sha256(self) -> str:
        return template_sha256(self.tokenizer, self.template_kwargs)

    @property
    def tokenizer_sha256(self) -> str:
        return tokenizer_sha256(self.tokenizer)

    def render(self, conversation: Conversation) -> list[Rendering]:
        """What the server saw at the conversation's assistant turns, see `turns`. Raises RowError."""
        render = self._renderer(conversation.tools)
        return locate_turns(render, self._closing(conversation.tools), self._special_tokens, conversation.messages)

    def tokenize(self, conversation: Conversation) -> tuple[TokenizedSample, ...]:
        """The conversation's samples: one, or more if the template rewrites history. All carry the conversation's id.

        Raises RowError for a row that the template refuses, or in which a turn cannot be located.
        """
        samples = tuple(self._encode(conversation, rendering) for rendering in self.render(conversation))
        if not any(sample.loss_mask.any() for sample in samples):
            raise RowError("no supervised token", "the template's generation markers leave out every turn")
        return samples

    def _closing(self, tools: tuple[dict[str, Any], ...]) -> Closing:
        """How turns close, found once without tools and once with the first that come: some have another template."""
        if bool(tools) not in self._closings:
            found = find_closing(self._renderer(tools), self._special_tokens, self.tokenizer.bos_token)
            self._closings[bool(tools)] = found
        return self._closings[bool(tools)]

    def _encode(self, conversation: Conversation, rendering: Rendering) -> TokenizedSample:
        encoding = self.tokenizer(rendering.text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        input_ids = np.asarray(encoding["input_ids"], dtype=np.int32)
        starts = token_starts(np.asarray(encoding["offset_mapping"], dtype=np.int64).reshape(-1, 2))
        marked = self._marked(conversation, rendering, input_ids)
        loss_mask = np.zeros(len(input_ids), dtype=np.bool_)
        for (start, stop), end in zip(rendering.spans, rendering.ends, strict=True):
            spoken = (starts >= start) & (starts < end) & marked
            closing = (starts >= end) & (starts < stop)
            if spoken.any():
                # The model did not close a turn that was cut at a limit, so its closing token teaches nothing true.
                loss_mask |= spoken if conversation.truncated else spoken | closing
        return TokenizedSample(id=conversation.id, input_ids=input_ids, loss_mask=loss_mask)

    def _marked(
        self, conversation: Conversation, rendering: Rendering, input_ids: npt.NDArray[np.int32]
    ) -> npt.NDArray[np.bool_]:
        """Bool [T]: true where the template's generation markers allow supervision; everywhere if it has none."""
        tools = list(conversation.tools) or None
        everywhere = np.ones(len(input_ids), dtype=np.bool_)
        template = self.tokenizer.get_chat_template(tools=tools)
        if not rendering.verbatim or not re.search(r"\{%-?\s*generation\s*-?%\}", template):
            return everywhere
        marked = self.tokenizer.apply_chat_template(
            list(conversation.messages[: rendering.last + 1]),
            tools=tools,
            tokenize=True,
            return_dict=True,
            return_assistant_tokens_mask=True,
            **self.template_kwargs,
        )
        length = len(marked["input_ids"])
        if marked["input_ids"] != input_ids[:length].tolist():
            raise RowError("generation markers do not fit", "the template renders the same messages differently")
        everywhere[:length] = marked["assistant_masks"]
        return everywhere

    def _renderer(self, tools: tuple[dict[str, Any], ...]) -> Render:
        def render(messages: Messages, add_generation_prompt: bool) -> str:
            try:
                text = self.tokenizer.apply_chat_template(
                    list(messages),
                    tools=list(tools) or None,
                    tokenize=False,
                    add_generation_prompt=add_generation_prompt,
                    **self.template_kwargs,
                )
            except TEMPLATE_ERRORS as error:
                raise RowError("the chat template refuses the row", f"{type(error).__name__}: {error}") from None
            return str(text)

        return render


def template_sha256(tokenizer: PreTrainedTokenizerBase, template_kwargs: Mapping[str, Any]) -> str:
    """Depends on the template's text and its arguments."""
    known = [tokenizer.chat_template, dict(template_kwargs), tokenizer.special_tokens_map]
    return hashlib.sha256(json.dumps(known, sort_keys=True, default=str).encode()).hexdigest()


def tokenizer_sha256(tokenizer: PreTrainedTokenizerBase) -> str:
    """Depends on everything that decides which ids a text gets."""
    return hashlib.sha256(tokenizer.backend_tokenizer.to_str().encode()).hexdigest()


def token_starts(offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Start characters [T] of tokens from (start, stop) offsets [T, 2].

    A byte-level tokenizer that trims offsets gives a token of blanks the empty range where the *next* token starts;
    it really starts where the token before it stops.
    """
    starts = offsets[:, 0].copy()
    blank = offsets[1:, 0] == offsets[1:, 1]
    starts[1:][blank] = np.minimum(starts[1:], offsets[:-1, 1])[blank]
    return starts


def num_anchors(loss_mask: npt.NDArray[np.bool_]) -> int:
    """How many positions a have loss_mask[a] and loss_mask[a + 1]: the places where a block can be trained."""
    return int(np.count_nonzero(loss_mask[:-1] & loss_mask[1:]))
