"""The loss mask covers what the model generates, no more and no less; expected texts are written by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import zoo
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from draftsmith.data.places import TokenPlaces, Tokens, within
from draftsmith.data.readers import RowError
from draftsmith.data.template import ChatTemplate, num_anchors
from draftsmith.errors import ModelError
from draftsmith.records import Conversation


def spoken(template: str, conversation: Conversation, **template_kwargs: Any) -> list[list[str]]:
    """Supervised texts of each sample of the conversation."""
    tokenizer = zoo.byte_tokenizer(template)
    samples = ChatTemplate(tokenizer, template_kwargs).tokenize(conversation)
    return [zoo.supervised(tokenizer, sample.input_ids, sample.loss_mask) for sample in samples]


def rendered(template: str, conversation: Conversation, **template_kwargs: Any) -> list[str]:
    tokenizer = zoo.byte_tokenizer(template)
    return [
        tokenizer.decode(sample.input_ids) for sample in ChatTemplate(tokenizer, template_kwargs).tokenize(conversation)
    ]


TWO_TURNS = zoo.chat("Hi", "Hello.", "And?", " Bye!\n")
APPENDING = {
    "chatml": (zoo.CHATML, ["Hello.<|im_end|>", " Bye!\n<|im_end|>"]),
    "chatml with markers": (zoo.CHATML_MARKED, ["Hello.<|im_end|>", " Bye!\n<|im_end|>"]),
    "markers around the header": (zoo.CHATML_MARKED_LOOSELY, ["Hello.<|im_end|>", " Bye!\n<|im_end|>"]),
    "markers on the last turn": (zoo.CHATML_MARKED_LAST, [" Bye!\n<|im_end|>"]),
    "llama 3": (zoo.LLAMA3, ["Hello.<|eot_id|>", "Bye!<|eot_id|>"]),
    "gemma": (zoo.GEMMA, ["Hello.<end_of_turn>", "Bye!<end_of_turn>"]),
    "mistral": (zoo.MISTRAL, [" Hello.<eos>", "  Bye!\n<eos>"]),
    "phi": (zoo.PHI, ["Hello.<|end|>", " Bye!\n<|end|>"]),
    "glm": (zoo.GLM, ["Hello.<|user|>", " Bye!\n<|user|>"]),
    "trimming": (zoo.TRIMMING, ["Hello.\n<|stop|>", "Bye!\n<|stop|>"]),
}


@pytest.mark.parametrize("family", APPENDING)
def test_a_template_that_only_appends_gives_one_sample_with_every_turn(family: str) -> None:
    template, expected = APPENDING[family]
    assert spoken(template, TWO_TURNS) == [expected]


REWRITING = {
    "qwen3, thinking": (
        zoo.QWEN3,
        {},
        ["<think>\n\n</think>\n\nHello.<|im_end|>", "<think>\n\n</think>\n\n Bye!\n<|im_end|>"],
    ),
    "qwen3, not thinking": (zoo.QWEN3, {"enable_thinking": False}, ["Hello.<|im_end|>", " Bye!\n<|im_end|>"]),
    "r1": (zoo.R1, {}, ["Hello.<eos>", " Bye!\n<eos>"]),
    "gpt-oss": (
        zoo.HARMONY,
        {},
        ["<|channel|>final<|message|>Hello.<|return|>", "<|channel|>final<|message|> Bye!\n<|return|>"],
    ),
    "command r": (
        zoo.COMMAND,
        {},
        ["<|RESPONSE|>Hello.<|END_RESPONSE|><|END_OF_TURN|>", "<|RESPONSE|> Bye!\n<|END_RESPONSE|><|END_OF_TURN|>"],
    ),
}


@pytest.mark.parametrize("family", REWRITING)
def test_a_template_that_rewrites_history_gives_one_sample_a_turn_each_as_generated(family: str) -> None:
    template, template_kwargs, expected = REWRITING[family]
    assert spoken(template, TWO_TURNS, **template_kwargs) == [[text] for text in expected]


def test_the_context_of_a_turn_is_what_the_server_saw_when_it_was_written() -> None:
    thoughts = zoo.chat("Hi", "<think>\nR1\n</think>\n\nHello.", "And?", "<think>\nR2\n</think>\n\nBye!")
    assert rendered(zoo.QWEN3, thoughts) == [
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<think>\nR1\n</think>\n\nHello.<|im_end|>\n",
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello.<|im_end|>\n"
        "<|im_start|>user\nAnd?<|im_end|>\n<|im_start|>assistant\n<think>\nR2\n</think>\n\nBye!<|im_end|>\n",
    ]


def test_reasoning_that_the_prompt_opens_is_supervised_from_its_first_word() -> None:
    thoughts = zoo.chat("Hi", "R1\n</think>\n\nHello.", "And?", "<think>\nR2\n</think>\n\nBye!")
    assert spoken(zoo.R1, thoughts) == [["R1\n</think>\n\nHello.<eos>"], ["R2\n</think>\n\nBye!<eos>"]]
    assert rendered(zoo.R1, thoughts)[1] == (
        "<bos><|User|>Hi<|Assistant|>\n\nHello.<eos><|User|>And?<|Assistant|><think>\nR2\n</think>\n\nBye!<eos>"
    )


def test_an_empty_think_block_from_the_prompt_is_context_and_not_supervised() -> None:
    [text] = rendered(zoo.QWEN3, zoo.chat("Hi", "Hello."), enable_thinking=False)
    assert text.endswith("assistant\n<think>\n\n</think>\n\nHello.<|im_end|>\n")
    assert spoken(zoo.QWEN3, zoo.chat("Hi", "Hello."), enable_thinking=False) == [["Hello.<|im_end|>"]]


def test_a_system_text_that_moves_to_the_last_question_stays_in_the_context() -> None:
    conversation = zoo.chat("Hi", "Hello.", "And?", "Bye!", system="Be kind")
    assert spoken(zoo.MOVING_SYSTEM, conversation) == [["Hello.<eos>"], ["Bye!<eos>"]]
    assert rendered(zoo.MOVING_SYSTEM, conversation)[1] == (
        "<bos>[INST]Hi[/INST]Hello.<eos>[INST]Be kind\n\nAnd?[/INST]Bye!<eos>"
    )


def test_messages_after_the_last_answer_are_not_part_of_the_sample() -> None:
    [text] = rendered(zoo.CHATML, zoo.chat("Hi", "Hello.", "And?"))
    assert text.endswith("Hello.<|im_end|>\n")


def test_tool_calls_are_supervised_and_tool_results_are_not() -> None:
    call = {"function": {"name": "weather", "arguments": {"city": "Oslo"}}}
    messages = (
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "4 C"},
        {"role": "assistant", "content": "Cold."},
    )
    tools = ({"type": "function", "function": {"name": "weather", "description": "w", "parameters": {}}},)
    assert spoken(zoo.TOOLS_ONLY, Conversation("c", messages, tools)) == [
        ['<|call|>weather{"city": "Oslo"}<|im_end|>', "Cold.<|im_end|>"]
    ]


REFUSED = {
    "only a user turn": (zoo.CHATML, zoo.chat("Hi"), {}, "no assistant turn"),
    "assistant first": (
        zoo.CHATML,
        Conversation("c", ({"role": "assistant", "content": "Hello."}, {"role": "user", "content": "Hi"})),
        {},
        "the assistant speaks first",
    ),
    "roles that do not alternate": (
        zoo.GEMMA,
        Conversation("c", ({"role": "user", "content": "Hi"},) * 2 + ({"role": "assistant", "content": "Hello."},)),
        {},
        "the chat template refuses the row",
    ),
    "a system turn where the template takes none": (
        zoo.GEMMA,
        zoo.chat("Hi", "Hello.", system="S"),
        {},
        "the chat template refuses the row",
    ),
    "an answer cut by the template": (
        zoo.CENSORING,
        zoo.chat("Hi", "Hello [1]."),
        {},
        "the template drops a part of an answer",
    ),
    "an answer that holds the template's header": (
        zoo.CHATML,
        zoo.chat("Hi", "<|im_start|>assistant\nHello."),
        {},
        "the template is applied twice",
    ),
    "reasoning although the prompt forbids it": (
        zoo.QWEN3,
        zoo.chat("Hi", "<think>\nR\n</think>\n\nHello."),
        {"enable_thinking": False},
        "an assistant turn cannot be located",
    ),
    "a question that holds a rendered chat": (
        zoo.LLAMA3,
        zoo.chat("Hi<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\nHello.", "Hello."),
        {},
        "the template is applied twice",
    ),
    "an answer that holds the end of its turn": (
        zoo.CHATML,
        zoo.chat("Hi", "Hello.<|im_end|>"),
        {},
        "an answer holds the end-of-turn token",
    ),
    "an answer that repeats what the prompt supplies": (
        zoo.TRIMMING,
        zoo.chat("Hi", "### assistant:\nHello."),
        {},
        "an answer repeats what the prompt supplies",
    ),
    "a template that answers twice in one turn": (
        zoo.ANSWERING_TWICE,
        zoo.chat("Hi", "Hello."),
        {},
        "a turn goes on after its end",
    ),
    "reasoning that the template does not know": (
        zoo.CHATML,
        Conversation(
            "c",
            ({"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello.", "reasoning_content": "R"}),
        ),
        {},
        "the template drops the reasoning",
    ),
    "a tool call beside a text that the template shows alone": (
        zoo.CHATML,
        Conversation(
            "c",
            (
                {"role": "user", "content": "Hi"},
                {"role": "assistant", "content": "Look.", "tool_calls": [{"function": {"name": "f"}}]},
            ),
        ),
        {},
        "the template drops a tool call",
    ),
    "nothing that closes a turn": (zoo.ENDLESS, zoo.chat("Hi", "Hello."), {}, "no end-of-turn token"),
    "a tool call that the template does not show": (
        zoo.CHATML,
        Conversation(
            "c", ({"role": "user", "content": "Hi"}, {"role": "assistant", "content": "", "tool_calls": [{"a": 1}]})
        ),
        {},
        "an assistant turn cannot be located",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_turn_that_cannot_be_located_is_an_error_of_its_row(case: str) -> None:
    template, conversation, template_kwargs, reason = REFUSED[case]
    with pytest.raises(RowError) as caught:
        ChatTemplate(zoo.byte_tokenizer(template), template_kwargs).tokenize(conversation)
    assert caught.value.reason == reason
    assert caught.value.detail


def test_a_tokenizer_without_a_chat_template_is_told_what_to_do() -> None:
    with pytest.raises(ModelError, match=r"has no chat template.*set tokenizer\.chat_template"):
        ChatTemplate(zoo.byte_tokenizer(None))


def test_a_template_that_shows_no_answers_is_refused_before_any_row() -> None:
    with pytest.raises(ModelError, match="fails on two plain turns"):
        ChatTemplate(zoo.byte_tokenizer(zoo.SWALLOWING))


def test_a_template_with_a_syntax_error_is_refused_before_any_row() -> None:
    with pytest.raises(ModelError, match="TemplateSyntaxError"):
        ChatTemplate(zoo.byte_tokenizer("{% for m in messages %}"))


def test_the_hashes_change_with_template_arguments_and_vocabulary() -> None:
    plain = ChatTemplate(zoo.byte_tokenizer(zoo.QWEN3))
    silent = ChatTemplate(zoo.byte_tokenizer(zoo.QWEN3), {"enable_thinking": False})
    other = ChatTemplate(zoo.byte_tokenizer(zoo.LLAMA3))
    assert len({plain.template_sha256, silent.template_sha256, other.template_sha256}) == 3
    assert plain.tokenizer_sha256 == silent.tokenizer_sha256 != other.tokenizer_sha256


def test_a_token_across_the_border_of_prompt_and_answer_is_not_supervised() -> None:
    tokenizer = merging_tokenizer(zoo.CHATML, trim_offsets=False)
    [sample] = ChatTemplate(tokenizer).tokenize(zoo.chat("Hi", "\nHello."))
    assert zoo.supervised(tokenizer, sample.input_ids, sample.loss_mask) == ["Hello.<|im_end|>"]
    [sample] = ChatTemplate(tokenizer).tokenize(zoo.chat("Hi", "Hello\n\n."))
    assert zoo.supervised(tokenizer, sample.input_ids, sample.loss_mask) == ["Hello\n\n.<|im_end|>"]


def test_trimmed_offsets_do_not_make_the_line_break_before_an_answer_supervised() -> None:
    tokenizer = merging_tokenizer(zoo.CHATML, trim_offsets=True)
    [sample] = ChatTemplate(tokenizer).tokenize(zoo.chat("Hi", "Hello there.\n"))
    assert zoo.supervised(tokenizer, sample.input_ids, sample.loss_mask) == ["Hello there.\n<|im_end|>"]


class Offsets(list[tuple[int, int]]):
    """What an encoding tells about its tokens' characters."""

    def token_to_chars(self, token: int) -> tuple[int, int]:
        return self[token]

    def char_to_token(self, char: int) -> int | None:
        return next((token for token, (start, stop) in enumerate(self) if start <= char < stop), None)


def test_blank_tokens_start_where_the_token_before_stops() -> None:
    places = TokenPlaces(Offsets([(0, 3), (4, 4), (4, 6), (6, 7), (6, 7)]))
    assert [places.first_from(char) for char in range(8)] == [0, 1, 1, 1, 2, 3, 3, 5]
    assert within(places, [(1, 2)], 0, 5).tolist() == [True, False, False, False, False]
    assert within(places, [(5, 7)], 1, 5).tolist() == [False, True, True, True]


def test_anchors_need_two_supervised_tokens_side_by_side() -> None:
    assert num_anchors(np.array([0, 1, 1, 1, 0, 1, 0, 1, 1], dtype=np.bool_)) == 3
    assert num_anchors(np.array([], dtype=np.bool_)) == 0


def merging_tokenizer(template: str, *, trim_offsets: bool) -> PreTrainedTokenizerFast:
    """Byte-level, with one merge: two line breaks are one token."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {letter: i for i, letter in enumerate([*alphabet, "ĊĊ"])}
    model = Tokenizer(models.BPE(vocab=vocab, merges=[("Ċ", "Ċ")]))
    model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    model.post_processor = processors.ByteLevel(trim_offsets=trim_offsets)
    model.decoder = decoders.ByteLevel()
    model.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=model)
    tokenizer.chat_template = template
    return tokenizer


# Nothing that a template would read as its own: no markers, no reasoning tags, no brackets.
TEXT = st.text(st.characters(codec="utf-8", exclude_characters="<>[]"), min_size=1, max_size=30).filter(str.strip)
EXACT = {
    zoo.CHATML: ("", "<|im_end|>"),
    zoo.CHATML_MARKED: ("", "<|im_end|>"),
    zoo.CHATML_MARKED_LOOSELY: ("", "<|im_end|>"),
    zoo.MISTRAL: (" ", "<eos>"),
    zoo.PHI: ("", "<|end|>"),
    zoo.GLM: ("", "<|user|>"),
    zoo.R1: ("", "<eos>"),
    zoo.HARMONY: ("<|channel|>final<|message|>", "<|return|>"),
    zoo.COMMAND: ("<|RESPONSE|>", "<|END_RESPONSE|><|END_OF_TURN|>"),
}
TEMPLATES = {template: (zoo.byte_tokenizer(template), ChatTemplate(zoo.byte_tokenizer(template))) for template in EXACT}


@pytest.mark.parametrize("template", EXACT, ids=range(len(EXACT)))
@settings(deadline=None, max_examples=40)
@given(texts=st.lists(st.tuples(TEXT, TEXT), min_size=1, max_size=4))
@example(texts=[("zqAnswerProbeqz", "fine"), ("again", "zqAnswerProbeqz"), ("zqAnswerProbeqzq", "good")])
def test_supervised_spans_decode_to_the_answers_and_their_end_markers(
    template: str, texts: list[tuple[str, str]]
) -> None:
    before, after = EXACT[template]
    tokenizer, chat_template = TEMPLATES[template]
    samples = chat_template.tokenize(zoo.chat(*[text for turn in texts for text in turn]))
    runs = [run for sample in samples for run in zoo.supervised(tokenizer, sample.input_ids, sample.loss_mask)]
    assert runs == [before + answer + after for _, answer in texts]


@settings(deadline=None, max_examples=100)
@given(
    parts=st.lists(
        st.sampled_from(["a", "é", "漢", "🙂", "\n\n", "\n", " ", "<|im_end|>", "e\u0301", "\u212b"]), max_size=12
    ),
    trims=st.booleans(),
)
def test_places_from_the_lengths_of_tokens_are_those_from_offsets(parts: list[str], trims: bool) -> None:
    text = "".join(parts)
    backend = merging_tokenizer(zoo.CHATML, trim_offsets=trims).backend_tokenizer
    [(ids, places)] = Tokens(backend).encode([text])
    encoding = backend.encode(text, add_special_tokens=False)
    assert ids.tolist() == encoding.ids
    if not trims:
        expected = TokenPlaces(encoding)
        for char in range(len(text) + 2):
            assert places.first_from(char) == expected.first_from(char)
            assert places.first_touching(char) == expected.first_touching(char)


def test_a_tokenizer_that_changes_the_text_is_asked_for_offsets() -> None:
    tokenizer = zoo.byte_tokenizer(zoo.CHATML)
    tokenizer.backend_tokenizer.normalizer = normalizers.NFC()
    for answer in ("A\u030a.", "Å."):  # two characters that become one, and the one
        [sample] = ChatTemplate(tokenizer).tokenize(zoo.chat("A\u030a", answer))
        assert zoo.supervised(tokenizer, sample.input_ids, sample.loss_mask) == ["Å.<|im_end|>"]
