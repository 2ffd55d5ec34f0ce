"""What users of other trainers have suffered from, where it can occur with data; each test names its report.

Faults that looked like success there (a mask of zeros, rows that vanish, stale tokens) are errors or counts here.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zoo

from draftsmith.data.collate import collate
from draftsmith.data.prepare import prepare
from draftsmith.data.store import TokenStore
from draftsmith.data.template import ChatTemplate
from draftsmith.errors import DataError, ModelError
from draftsmith.records import BatchSpec, Conversation
from helpers import chat_row, write_jsonl

TEXT = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello.<|im_end|>\n"


def stored(tmp_path: Path, rows: list[Any], template: str = zoo.CHATML, **settings: Any) -> TokenStore:
    source = write_jsonl(tmp_path / "rows.jsonl", rows)
    settings = {"max_length": 256, "holdout": 0.0, **settings}
    return prepare(source, tmp_path / "store", zoo.byte_tokenizer(template), **settings)


def learned(store: TokenStore, index: int = 0, template: str = zoo.CHATML) -> list[str]:
    sample = store.sample(index)
    return zoo.supervised(zoo.byte_tokenizer(template), sample.input_ids, sample.loss_mask)


def test_preformatted_text_without_an_answer_is_refused_and_never_a_mask_of_zeros(tmp_path: Path) -> None:
    """https://github.com/sgl-project/SpecForge/issues/392"""
    with pytest.raises(DataError, match=r"no assistant turn.*the text holds no '<\|im_start\|>assistant"):
        stored(tmp_path, [{"text": "<|im_start|>user\nHi<|im_end|>\n"}])


def test_every_supervised_token_is_trained_where_it_stands(tmp_path: Path) -> None:
    """https://github.com/sgl-project/SpecForge/issues/885: inputs and labels were shifted, the mask was not"""
    store = stored(tmp_path, [chat_row("Hi", "Hello.", "a")])
    batch = collate(store, BatchSpec(seq=0, epoch=0, bucket=0, samples=(0,), padded_length=int(store.lengths[0])))
    answer = batch.input_ids[0][batch.loss_mask[0]]
    assert zoo.byte_tokenizer(zoo.CHATML).decode(answer) == "Hello.<|im_end|>"


def test_preformatted_text_is_read_as_documented_and_gives_what_messages_give(tmp_path: Path) -> None:
    """https://github.com/sgl-project/SpecForge/pull/498"""
    store = stored(tmp_path, [{"text": TEXT}, chat_row("Hi", "Hello.", "a")])
    [text, chat] = [store.sample(index) for index in range(2)]
    assert np.array_equal(text.input_ids, chat.input_ids)
    assert np.array_equal(text.loss_mask, chat.loss_mask)


def test_markers_that_are_given_find_answers_in_any_text(tmp_path: Path) -> None:
    """https://github.com/sgl-project/SpecForge/pull/498, for texts of another template"""
    rows = [{"text": "Q: Hi A: Hello. END Q: And? A: Bye! END"}, {"text": "Q: Hi A: Hello"}]
    store = stored(tmp_path, rows, text_markers=("A:", "END"))
    assert learned(store) == [" Hello. END", " Bye! END"]
    assert list(store.accounting.rejected) == ["no end-of-turn token"]


def test_a_chat_that_does_not_alternate_costs_one_row(tmp_path: Path) -> None:
    """https://github.com/sgl-project/SpecForge/pull/221"""
    odd = {"messages": [{"role": "user", "content": "Hi"}] * 2 + [{"role": "assistant", "content": "Hello."}]}
    store = stored(tmp_path, [chat_row("Hi", "Hello.", "a"), odd, chat_row("Hi", "Bye!", "b")], zoo.GEMMA)
    assert (store.accounting.num_read, store.accounting.num_kept) == (3, 2)
    assert "must alternate" in store.accounting.rejected["the chat template refuses the row"].first.detail


@pytest.mark.parametrize(
    "changed", ["chat_template", "template_kwargs", "bos_token", "vocabulary", "truncated", "max_length"]
)
def test_tokens_never_outlive_what_they_were_made_with(changed: str, tmp_path: Path) -> None:
    """https://github.com/sgl-project/SpecForge/pull/743: the cache's key left the tokenizer's own template out"""
    store = stored(tmp_path, [chat_row("Hi", "Hello.", "a")])
    tokenizer, settings = zoo.byte_tokenizer(zoo.CHATML), {"max_length": 256, "holdout": 0.0}
    if changed == "chat_template":
        tokenizer.chat_template = zoo.CHATML + " "
    elif changed == "template_kwargs":
        settings["template_kwargs"] = {"enable_thinking": False}  # type: ignore[assignment]
    elif changed == "bos_token":
        tokenizer.bos_token = "<pad>"
    elif changed == "vocabulary":
        tokenizer.add_tokens(["new"])
    else:
        settings |= {"truncated": "cut"} if changed == "truncated" else {"max_length": 99}  # type: ignore[dict-item]
    with pytest.raises(DataError, match="already holds another store"):
        prepare(tmp_path / "rows.jsonl", store.path, tokenizer, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("as_text", [False, True])
def test_tools_are_read_as_a_list_and_as_its_json_text(as_text: bool, tmp_path: Path) -> None:
    """https://github.com/sgl-project/SpecForge/pull/738"""
    tools: Any = [{"type": "function", "function": {"name": "weather"}}]
    row = {**chat_row("Hi", "Hello.", "a"), "tools": json.dumps(tools) if as_text else tools}
    store = stored(tmp_path, [row], zoo.TOOLS_ONLY)
    assert "weather" in zoo.byte_tokenizer(zoo.TOOLS_ONLY).decode(store.sample(0).input_ids)


def test_the_input_of_an_instruction_is_part_of_the_prompt(tmp_path: Path) -> None:
    """https://github.com/sgl-project/SpecForge/pull/720"""
    store = stored(tmp_path, [{"instruction": "Sort", "input": "3 1 2", "output": "1 2 3"}])
    assert "Sort\n\n3 1 2" in zoo.byte_tokenizer(zoo.CHATML).decode(store.prompt(0))


def test_thinking_is_learned_and_an_empty_block_from_the_prompt_is_not() -> None:
    """https://github.com/vllm-project/speculators/pull/346 and https://github.com/NVIDIA-NeMo/Automodel/pull/3739"""
    tokenizer = zoo.byte_tokenizer(zoo.QWEN3)
    for template_kwargs, answer, expected in (
        ({}, "<think>\nR\n</think>\n\nHello.", "<think>\nR\n</think>\n\nHello.<|im_end|>"),
        ({"enable_thinking": False}, "Hello.", "Hello.<|im_end|>"),
    ):
        [sample] = ChatTemplate(tokenizer, template_kwargs).tokenize(zoo.chat("Hi", answer))
        assert zoo.supervised(tokenizer, sample.input_ids, sample.loss_mask) == [expected]


def test_role_markers_that_no_family_has_are_found_too() -> None:
    """https://github.com/vllm-project/speculators/pull/227: markers were hard-coded by family"""
    template = (
        "{% for m in messages %}{{ '<|q|>' if m.role == 'user' else '<|a|>' }}{{ m.content }}<|over|>{% endfor %}"
        "{% if add_generation_prompt %}<|a|>{% endif %}"
    )
    tokenizer = zoo.byte_tokenizer(template)
    [sample] = ChatTemplate(tokenizer).tokenize(zoo.chat("Hi", "Hello.", "And?", "Bye!"))
    assert zoo.supervised(tokenizer, sample.input_ids, sample.loss_mask) == ["Hello.<|over|>", "Bye!<|over|>"]


def test_an_answer_that_is_not_rendered_verbatim_gives_no_wrong_span(tmp_path: Path) -> None:
    """https://github.com/vllm-project/speculators/pull/943"""
    with pytest.raises(DataError, match="the template drops a part of an answer"):
        stored(tmp_path, [chat_row("Hi", "Hello [1].", "a")], zoo.CENSORING)


def test_no_row_is_both_trained_on_and_held_out_whatever_the_share(tmp_path: Path) -> None:
    """https://github.com/vllm-project/speculators/pull/868: two formulas in floating point disagreed"""
    rows = [chat_row(f"Hi {i}", "Hello.", str(i)) for i in range(50)]
    for place, share in enumerate((0.0, 0.1, 1 / 3, 0.9)):
        source = write_jsonl(tmp_path / "rows.jsonl", rows)
        store = prepare(source, tmp_path / str(place), zoo.byte_tokenizer(zoo.CHATML), max_length=64, holdout=share)
        sides = [*store.train_indices.tolist(), *store.holdout_indices.tolist()]
        assert sorted(sides) == list(range(50))


def test_cut_answers_are_left_out_by_default_and_counted(tmp_path: Path) -> None:
    """https://github.com/vllm-project/speculators/issues/584: truncated rows polluted the data"""
    rows = [chat_row("Hi", "Hello.", "a"), {**chat_row("Hi", "Hel", "b"), "finish_reason": "length"}]
    store = stored(tmp_path, rows)
    assert store.ids == ["a"]
    assert store.accounting.rejected["an answer was cut at a limit"].count == 1


def test_a_template_that_marks_the_last_turn_only_is_obeyed_for_rows_of_any_kind(tmp_path: Path) -> None:
    """https://github.com/lightseekorg/TorchSpec/pull/37: "last turn only" was ignored on one path"""
    long = {"messages": [{"role": role, "content": role} for role in ("user", "assistant") * 3]}
    tool = [{"type": "function", "function": {"name": "f"}}]
    store = stored(tmp_path, [long, {**long, "tools": tool}], zoo.CHATML_MARKED_LAST)
    assert [learned(store, index, zoo.CHATML_MARKED_LAST) for index in range(2)] == [["assistant<|im_end|>"]] * 2


def test_the_length_of_a_sample_is_its_tokens_and_not_the_size_of_a_dictionary(tmp_path: Path) -> None:
    """https://github.com/NVIDIA/Model-Optimizer/pull/2172: every chat was two long and skipped"""
    store = stored(tmp_path, [chat_row("Hi", "Hello.", "a")])
    assert store.lengths.tolist() == [len(zoo.byte_tokenizer(zoo.CHATML)(TEXT)["input_ids"])]


def test_a_base_model_is_told_that_it_has_no_template(tmp_path: Path) -> None:
    """https://github.com/NVIDIA/Model-Optimizer/pull/1755"""
    source = write_jsonl(tmp_path / "rows.jsonl", [chat_row("Hi", "Hello.", "a")])
    with pytest.raises(ModelError, match=r"has no chat template \(is it a base model\?\)"):
        prepare(source, tmp_path / "store", zoo.byte_tokenizer(None), max_length=64, holdout=0)


def test_every_turn_of_a_chat_is_kept(tmp_path: Path) -> None:
    """https://github.com/NVIDIA/Model-Optimizer/pull/1680: only the first user turn was kept"""
    turns = [("human", "Q1"), ("gpt", "A1"), ("human", "Q2"), ("gpt", "A2"), ("human", "Q3"), ("gpt", "A3")]
    store = stored(tmp_path, [{"conversations": [{"from": who, "value": text} for who, text in turns]}])
    text = zoo.byte_tokenizer(zoo.CHATML).decode(store.sample(0).input_ids)
    assert all(said in text for _, said in turns)
    assert learned(store) == ["A1<|im_end|>", "A2<|im_end|>", "A3<|im_end|>"]


def test_supervision_that_starts_too_late_is_blamed_for_it_and_not_for_being_short(tmp_path: Path) -> None:
    """https://github.com/NVIDIA-NeMo/Automodel/pull/3268"""
    with pytest.raises(
        DataError, match=r"no supervised token left after truncation at 64.*supervision starts at token"
    ):
        stored(tmp_path, [chat_row("x" * 80, "Hello.", "a")], max_length=64)


def test_a_mask_that_template_markers_leave_empty_is_an_error_of_the_row() -> None:
    """https://github.com/NVIDIA/Model-Optimizer/pull/1211"""
    template = zoo.CHATML_MARKED.replace("m.role == 'assistant'", "m.role == 'nobody'")
    with pytest.raises(Exception, match="no supervised token"):
        ChatTemplate(zoo.byte_tokenizer(template)).tokenize(zoo.chat("Hi", "Hello."))


def test_earlier_reasoning_is_dropped_exactly_where_the_server_drops_it(tmp_path: Path) -> None:
    """The training text is what will be in the context: one sample a turn, and the conversations are counted."""
    thoughts = ["<think>\nR1\n</think>\n\nHello.", "<think>\nR2\n</think>\n\nBye!"]
    roles = ("user", "assistant", "user", "assistant")
    texts = ("Hi", thoughts[0], "And?", thoughts[1])
    row = {"messages": [{"role": role, "content": text} for role, text in zip(roles, texts, strict=True)]}
    store = stored(tmp_path, [row], zoo.QWEN3)
    tokenizer = zoo.byte_tokenizer(zoo.QWEN3)
    assert ["R1" in tokenizer.decode(store.prompt(index)) for index in range(2)] == [False, False]
    assert [learned(store, index, zoo.QWEN3) for index in range(2)] == [[text + "<|im_end|>"] for text in thoughts]
    [(note, count)] = store.accounting.notes.items()
    assert "history is rewritten" in note
    assert count == 1


def test_a_conversation_in_memory_that_was_cut_is_treated_like_one_from_a_file(tmp_path: Path) -> None:
    """https://github.com/vllm-project/speculators/issues/584, on the other path"""
    cut = Conversation("c", zoo.chat("Hi", "Hel").messages, truncated=True)
    with pytest.raises(DataError, match="an answer was cut at a limit"):
        prepare([cut], tmp_path / "store", zoo.byte_tokenizer(zoo.CHATML), max_length=64, holdout=0)
