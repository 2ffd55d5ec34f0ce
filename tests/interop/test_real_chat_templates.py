"""Chat templates as model makers ship them, where a collection lies in or beside the repository; skipped elsewhere.

What the model generates around an answer is written by hand for each.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from draftsmith.data.rejection import RowError
from draftsmith.data.template import ChatTemplate
from draftsmith.records import Conversation

ROOT = Path(__file__).parents[2]
FOLDERS = [place / "shared" / "data" / "chat-templates" for place in (ROOT, ROOT.parent)]
FOLDER = next((folder for folder in FOLDERS if folder.is_dir()), None)
MARKERS = (
    r"<\|[^|<>{}' ]+\|>|<｜[^｜]+｜>|<(?:start|end)_of_turn>|\[/?[A-Z_]+\]|<SPECIAL_\d+>|<seed:\w+>|<\|?[\w:]+\|>|"
    r"<\|[\w:]+>|\]~b\]|\]~!b\[|\[e~\["
)
GENERATED = {  # before the answer, after it
    "ByteDance-Seed-OSS": ("", "<seed:eos>"),
    "CohereForAI-c4ai-command-r7b-12-2024-tool_use": ("<|START_RESPONSE|>", "<|END_RESPONSE|><|END_OF_TURN_TOKEN|>"),
    "GLM-4.6": ("\n<think></think>\n", "<|user|>"),
    "HuggingFaceTB-SmolLM3-3B": ("", "<|im_end|>"),
    "Kimi-K2-Instruct": ("", "<|im_end|>"),
    "LFM2-8B-A1B": ("", "<|im_end|>"),
    "MiniMax-M2": ("", "[e~["),
    "NVIDIA-Nemotron-Nano-v2": ("", "\n<SPECIAL_12>"),
    "NousResearch-Hermes-3-Llama-3.1-8B-tool_use": ("", "<|im_end|>"),
    "Qwen-QwQ-32B": ("", "<|im_end|>"),
    "Qwen-Qwen2.5-7B-Instruct": ("", "<|im_end|>"),
    "Qwen-Qwen3-0.6B": ("<think>\n\n</think>\n\n", "<|im_end|>"),
    "Qwen3.5-4B": ("\n</think>\n\n", "<|im_end|>"),
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B": ("", "<｜end▁of▁sentence｜>"),
    "deepseek-ai-DeepSeek-V3.1": ("", "<｜end▁of▁sentence｜>"),
    "google-gemma-2-2b-it": ("", "<end_of_turn>"),
    "google-gemma-4-31B-it": ("", "<turn|>"),
    "ibm-granite-granite-3.3-2B-Instruct": ("", "<|end_of_text|>"),
    "meta-llama-Llama-3.1-8B-Instruct": ("", "<|eot_id|>"),
    "meta-llama-Llama-3.2-3B-Instruct": ("", "<|eot_id|>"),
    "microsoft-Phi-3.5-mini-instruct": ("", "<|end|>"),
    "mistralai-Ministral-3-14B-Reasoning-2512": ("", "<eos>"),
    "mistralai-Mistral-Nemo-Instruct-2407": ("", "<eos>"),
    "openai-gpt-oss-120b": ("<|channel|>final<|message|>", "<|return|>"),
}
WITHOUT_SYSTEM = {"google-gemma-2-2b-it"}
ONLY_WITH_TOOLS = {"NousResearch-Hermes-3-Llama-3.1-8B-tool_use"}
# A turn that calls weather(city="Oslo"), from its first generated character to its last.
CALLED = {
    "ByteDance-Seed-OSS": "<seed:tool_call>\n<function=weather>\n<parameter=city>Oslo</parameter>\n</function>\n"
    "</seed:tool_call><seed:eos>",
    "CohereForAI-c4ai-command-r7b-12-2024-tool_use": '<|START_ACTION|>[\n    {"tool_call_id": "0", '
    '"tool_name": "weather", "parameters": {"city": "Oslo"}}\n]<|END_ACTION|><|END_OF_TURN_TOKEN|>',
    "GLM-4.6": "\n<think></think>\n<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Oslo</arg_value>\n"
    "</tool_call><|observation|>",
    "MiniMax-M2": '\n<minimax:tool_call>\n<invoke name="weather">\n<parameter name="city">Oslo</parameter>\n</invoke>\n'
    "</minimax:tool_call>[e~[",
    "NousResearch-Hermes-3-Llama-3.1-8B-tool_use": '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n'
    "</tool_call><|im_end|>",
    "Qwen-QwQ-32B": '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call><|im_end|>',
    "Qwen-Qwen2.5-7B-Instruct": '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n'
    "</tool_call><|im_end|>",
    "Qwen-Qwen3-0.6B": '<think>\n\n</think>\n\n<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n'
    "</tool_call><|im_end|>",
    "Qwen3.5-4B": "\n</think>\n\n<tool_call>\n<function=weather>\n<parameter=city>\nOslo\n</parameter>\n</function>\n"
    "</tool_call><|im_end|>",
    "deepseek-ai-DeepSeek-V3.1": '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{"city": "Oslo"}'
    "<｜tool▁call▁end｜><｜tool▁calls▁end｜><｜end▁of▁sentence｜>",
    "google-gemma-4-31B-it": '<|tool_call>call:weather{city:<|"|>Oslo<|"|>}<tool_call|><|tool_response>',
    "meta-llama-Llama-3.1-8B-Instruct": '{"name": "weather", "parameters": {"city": "Oslo"}}<|eot_id|>',
    "meta-llama-Llama-3.2-3B-Instruct": '{"name": "weather", "parameters": {"city": "Oslo"}}<|eot_id|>',
    "mistralai-Ministral-3-14B-Reasoning-2512": '[TOOL_CALLS]weather[ARGS]{"city": "Oslo"}<eos>',
    "mistralai-Mistral-Nemo-Instruct-2407": '[TOOL_CALLS][{"name": "weather", "arguments": {"city": "Oslo"}, '
    '"id": "abcdefghi"}]<eos>',
    "openai-gpt-oss-120b": ' to=functions.weather<|channel|>commentary json<|message|>{"city": "Oslo"}<|call|>',
}
CALL_REFUSED = {  # by the template, or because it shows no calls, or shows one as two turns
    "HuggingFaceTB-SmolLM3-3B": "an assistant turn cannot be located",
    "Kimi-K2-Instruct": "the chat template refuses the row",
    "LFM2-8B-A1B": "an assistant turn cannot be located",
    "NVIDIA-Nemotron-Nano-v2": "an assistant turn cannot be located",
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B": "a turn goes on after its end",
    "google-gemma-2-2b-it": "the chat template refuses the row",
    "ibm-granite-granite-3.3-2B-Instruct": "an assistant turn cannot be located",
    "microsoft-Phi-3.5-mini-instruct": "an assistant turn cannot be located",
}
REASONED = {  # reasoning_content "R1" before the answer "Hello."; every other template refuses the row
    "ByteDance-Seed-OSS": "<seed:think>R1</seed:think>\nHello.<seed:eos>",
    "GLM-4.6": "\n<think>R1</think>\nHello.<|user|>",
    "MiniMax-M2": "R1\n</think>\n\nHello.[e~[",
    "Qwen-Qwen3-0.6B": "<think>\nR1\n</think>\n\nHello.<|im_end|>",
    "Qwen3.5-4B": "R1\n</think>\n\nHello.<|im_end|>",
    "openai-gpt-oss-120b": "<|channel|>analysis<|message|>R1<|end|><|start|>assistant<|channel|>final<|message|>Hello."
    "<|return|>",
}
CALL = {"type": "function", "id": "abcdefghi", "function": {"name": "weather", "arguments": {"city": "Oslo"}}}
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Tells the weather.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "description": "Where."}},
            "required": ["city"],
        },
    },
}


def byte_tokenizer(template: str) -> PreTrainedTokenizerFast:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    model = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(alphabet)}, merges=[]))
    model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    model.decoder = decoders.ByteLevel()
    model.add_special_tokens(["<bos>", "<eos>", *sorted(set(re.findall(MARKERS, template)) - {"<bos>", "<eos>"})])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=model, bos_token="<bos>", eos_token="<eos>")
    tokenizer.chat_template = template
    return tokenizer


needs_templates = pytest.mark.skipif(
    FOLDER is None, reason="no folder shared/data/chat-templates in or beside the repository"
)


def template_of(name: str) -> PreTrainedTokenizerFast:
    assert FOLDER is not None
    return byte_tokenizer((FOLDER / f"{name}.jinja").read_text(encoding="utf-8"))


def generated(tokenizer: PreTrainedTokenizerFast, conversation: Conversation) -> list[str]:
    """Supervised texts in order; each stands right after the prompt that the server renders for its turn."""
    texts = []
    asked = {
        tokenizer.apply_chat_template(
            list(conversation.messages[:position]),
            tools=list(conversation.tools) or None,
            tokenize=False,
            add_generation_prompt=True,
        )
        for position, message in enumerate(conversation.messages)
        if message["role"] == "assistant"
    }
    for sample in ChatTemplate(tokenizer).tokenize(conversation):
        edges = np.flatnonzero(np.diff(np.concatenate([[0], sample.loss_mask, [0]])))
        for start, stop in edges.reshape(-1, 2):
            prompt = tokenizer.decode(sample.input_ids[:start])
            assert prompt in asked, f"nobody was ever asked {prompt[-80:]!r}"
            texts.append(tokenizer.decode(sample.input_ids[start:stop]))
    return texts


@needs_templates
@pytest.mark.parametrize("name", [*CALLED, *CALL_REFUSED])
def test_a_tool_call_is_generated_text_and_its_result_is_not(name: str) -> None:
    messages = (
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "content": "rain", "name": "weather", "tool_call_id": "abcdefghi"},
        {"role": "assistant", "content": "It rains."},
    )
    conversation = Conversation("c", messages, (TOOL,))
    if name in CALL_REFUSED:
        with pytest.raises(RowError) as refusal:
            ChatTemplate(template_of(name)).tokenize(conversation)
        assert refusal.value.reason == CALL_REFUSED[name]
        return
    [called, answered] = generated(template_of(name), conversation)
    assert called == CALLED[name]
    assert "It rains." in answered
    assert "rain" not in answered.replace("It rains.", "")


@needs_templates
@pytest.mark.parametrize("name", GENERATED)
def test_reasoning_is_generated_text_where_the_template_takes_it_and_never_lost(name: str) -> None:
    messages = (
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello.", "reasoning_content": "R1"},
        {"role": "user", "content": "And?"},
        {"role": "assistant", "content": "Bye!", "reasoning_content": "R2"},
    )
    conversation = Conversation("c", messages, (TOOL,) if name in ONLY_WITH_TOOLS else ())
    if name not in REASONED:
        with pytest.raises(RowError, match="the template drops the reasoning"):
            ChatTemplate(template_of(name)).tokenize(conversation)
        return
    first = REASONED[name]
    assert generated(template_of(name), conversation) == [first, first.replace("R1", "R2").replace("Hello.", "Bye!")]


def test_every_template_of_the_collection_is_tried() -> None:
    known = {path.stem for path in FOLDER.glob("*.jinja")} if FOLDER is not None else set(GENERATED)
    assert known == set(GENERATED) == {*CALLED, *CALL_REFUSED}


@needs_templates
@pytest.mark.parametrize("system", [False, True], ids=["plain", "system"])
@pytest.mark.parametrize("name", GENERATED)
def test_supervised_text_is_what_the_model_would_generate(name: str, system: bool) -> None:
    tokenizer = template_of(name)
    texts = [("user", "Hi"), ("assistant", "Hello."), ("user", "And?"), ("assistant", "Bye!")]
    if system and name not in WITHOUT_SYSTEM:
        texts.insert(0, ("system", "Be kind."))
    messages = tuple({"role": role, "content": text} for role, text in texts)
    tools = (TOOL,) if name in ONLY_WITH_TOOLS else ()
    samples = ChatTemplate(tokenizer).tokenize(Conversation("c", messages, tools))
    supervised = "".join(tokenizer.decode(sample.input_ids[sample.loss_mask]) for sample in samples)
    before, after = GENERATED[name]
    assert supervised == f"{before}Hello.{after}{before}Bye!{after}"
