"""Chat templates as model makers ship them, where a collection lies in or beside the repository; skipped elsewhere.

What the model generates around an answer is written by hand for each.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

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


@pytest.mark.skipif(FOLDER is None, reason="no folder shared/data/chat-templates in or beside the repository")
@pytest.mark.parametrize("system", [False, True], ids=["plain", "system"])
@pytest.mark.parametrize("name", GENERATED)
def test_supervised_text_is_what_the_model_would_generate(name: str, system: bool) -> None:
    assert FOLDER is not None
    tokenizer = byte_tokenizer((FOLDER / f"{name}.jinja").read_text(encoding="utf-8"))
    texts = [("user", "Hi"), ("assistant", "Hello."), ("user", "And?"), ("assistant", "Bye!")]
    if system and name not in WITHOUT_SYSTEM:
        texts.insert(0, ("system", "Be kind."))
    messages = tuple({"role": role, "content": text} for role, text in texts)
    tools = (TOOL,) if name in ONLY_WITH_TOOLS else ()
    samples = ChatTemplate(tokenizer).tokenize(Conversation("c", messages, tools))
    supervised = "".join(tokenizer.decode(sample.input_ids[sample.loss_mask]) for sample in samples)
    before, after = GENERATED[name]
    assert supervised == f"{before}Hello.{after}{before}Bye!{after}"
