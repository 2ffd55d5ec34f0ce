"""Templates put together from every habit that templates have; what is generated follows from the habits alone.

Nothing here is a known family: a template that nobody has seen yet is located like any other, or refused with a reason.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import pytest
import zoo
from hypothesis import given, settings
from hypothesis import strategies as st

from draftsmith.data.rejection import RowError
from draftsmith.data.template import ChatTemplate
from draftsmith.records import Conversation

HEADERS = {
    "chatml": ("<|im_start|>{role}\n", "<|im_end|>", "\n"),
    "header ids": ("<|header|>{role}<|message|>\n\n", "<|stop|>", ""),
    "plain words": ("### {role}:\n", "<|stop|>", "\n\n"),
    "ends with blanks before": ("<|{role}|>", "\n<|stop|>", "\n"),
}
SYSTEMS = ("none", "default", "required text in front")
BLOCKS = ("none", "opened by the prompt", "empty from the prompt", "kept by the last turn only")
MARKERS = ("none", "text and end", "text alone", "header too", "only in the last turn", "around questions")


@dataclass(frozen=True)
class Style:
    """How a template writes a chat."""

    header: str
    system: str
    block: str
    trims: bool
    markers: str

    def jinja(self) -> str:
        """The template itself."""
        before, end, after = HEADERS[self.header]
        opening, closing = (jinja_text(part) for part in before.split("{role}"))
        asked = text = "m.content | trim" if self.trims else "m.content"
        if self.block == "kept by the last turn only":
            text = f"(('<|think|><|/think|>' if loop.last else '') + {text})"
        mark, unmark = "{% generation %}", "{% endgeneration %}"
        head = f"{{{{ {opening} + m.role + {closing} }}}}"
        body, stop = f"{{{{ {text} }}}}", f"{{{{ {jinja_text(end)} }}}}"
        marked = {
            "none": head + body + stop,
            "text and end": head + mark + body + stop + unmark,
            "text alone": head + mark + body + unmark + stop,
            "header too": mark + head + body + stop + unmark,
            "only in the last turn": "{% if loop.last %}" + head + mark + body + stop + unmark
            + "{% else %}" + head + body + stop + "{% endif %}",
            "around questions": head + body + stop,
        }[self.markers]  # fmt: skip
        question = head + f"{{{{ {asked} }}}}" + stop
        question = mark + question + unmark if self.markers == "around questions" else question
        first = {
            "none": "",
            "default": "{% if messages[0].role != 'system' %}{{ " + f"{opening} + 'system' + {closing} + 'Be kind.' + "
            + jinja_text(end + after) + " }}{% endif %}",
            "required text in front": "{{ bos_token }}",
        }[self.system]  # fmt: skip
        supplied = {"opened by the prompt": "<|think|>\n", "empty from the prompt": "<|think|>\n\n<|/think|>\n\n"}
        prompt = f"{opening} + 'assistant' + {closing} + {jinja_text(supplied.get(self.block, ''))}"
        turn = (
            f"{{% if m.role == 'assistant' %}}{marked}{{% else %}}{question}{{% endif %}}{{{{ {jinja_text(after)} }}}}"
        )
        ask = f"{{% if add_generation_prompt %}}{{{{ {prompt} }}}}{{% endif %}}"
        return f"{first}{{% for m in messages %}}{turn}{{% endfor %}}{ask}"

    def generated(self, answer: str) -> str:
        """What the model writes for an answer, by the habits."""
        shown = answer.strip() if self.trims else answer
        block = "<|think|><|/think|>" if self.block == "kept by the last turn only" else ""
        return block + shown + HEADERS[self.header][1]


def jinja_text(text: str) -> str:
    return "'" + text.replace("\n", "\\n") + "'"


STYLES = [
    Style(header, system, block, trims, markers)
    for header, system, block, trims, markers in itertools.product(HEADERS, SYSTEMS, BLOCKS, (False, True), MARKERS)
    # Every pair of habits meets; all five at once would only take longer.
    if (len(header) + SYSTEMS.index(system) + BLOCKS.index(block) + MARKERS.index(markers)) % 4 == int(trims)
]
TEXT = st.text(st.characters(codec="utf-8", exclude_characters="<>#"), min_size=1, max_size=20).filter(str.strip)


def runs_of(style: Style, conversation: Conversation) -> list[str]:
    tokenizer = zoo.byte_tokenizer(style.jinja())
    samples = ChatTemplate(tokenizer).tokenize(conversation)
    return [run for sample in samples for run in zoo.supervised(tokenizer, sample.input_ids, sample.loss_mask)]


@pytest.mark.parametrize("style", STYLES, ids=lambda style: "/".join(map(str, vars(style).values())))
def test_a_template_of_any_habits_is_located_exactly_or_its_rows_are_refused(style: Style) -> None:
    answers = [" Hello.\n", "Bye!"]
    conversation = zoo.chat("Hi", answers[0], "And?", answers[1])
    expected = [style.generated(answer) for answer in answers]
    if style.markers == "only in the last turn" and style.block == "none":
        expected = expected[1:]
    supplied = style.block in ("opened by the prompt", "empty from the prompt")  # then no rendering shows the turn
    if style.markers == "around questions" and not supplied:
        with pytest.raises(RowError, match="no supervised token"):
            runs_of(style, conversation)
        return
    assert runs_of(style, conversation) == expected


@settings(deadline=None, max_examples=60)
@given(
    texts=st.lists(st.tuples(TEXT, TEXT), min_size=1, max_size=3),
    style=st.sampled_from([style for style in STYLES if style.markers in ("none", "text and end", "header too")]),
)
def test_random_conversations_in_random_styles_decode_to_their_answers(
    texts: list[tuple[str, str]], style: Style
) -> None:
    conversation = zoo.chat(*[text for turn in texts for text in turn])
    assert runs_of(style, conversation) == [style.generated(answer) for _, answer in texts]
