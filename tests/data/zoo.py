"""Chat templates written for these tests, in the styles of the big families, and a byte tokenizer to carry them."""

from __future__ import annotations

import re
from typing import Any

from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast

from draftsmith.records import Conversation

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
CHATML_MARKED = (
    "{% for m in messages %}{% if m.role == 'assistant' %}{{ '<|im_start|>assistant\\n' }}"
    "{% generation %}{{ m.content + '<|im_end|>' }}{% endgeneration %}{{ '\\n' }}"
    "{% else %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
# The markers wrap the header too, and leave the end-of-turn token out.
CHATML_MARKED_LOOSELY = (
    "{% for m in messages %}{% if m.role == 'assistant' %}"
    "{% generation %}{{ '<|im_start|>assistant\\n' + m.content }}{% endgeneration %}{{ '<|im_end|>\\n' }}"
    "{% else %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
# Only the last turn is marked.
CHATML_MARKED_LAST = (
    "{% for m in messages %}{% if m.role == 'assistant' and loop.last %}{{ '<|im_start|>assistant\\n' }}"
    "{% generation %}{{ m.content + '<|im_end|>' }}{% endgeneration %}{{ '\\n' }}"
    "{% else %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
LLAMA3 = (
    "{{ bos_token }}{% for m in messages %}{{ '<|start_header_id|>' + m.role + '<|end_header_id|>\\n\\n' }}"
    "{{ m.content | trim }}{{ '<|eot_id|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"
)
GEMMA = (
    "{{ bos_token }}{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant') }}{% endif %}"
    "{{ '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) + '\\n' + m.content | trim }}"
    "{{ '<end_of_turn>\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}"
)
# History loses its reasoning, the last turn always shows a think block, and without thinking the prompt supplies it.
QWEN3 = (
    "{% set ns = namespace(last=0) %}{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}"
    "{% endif %}{% endfor %}{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' }}"
    "{% set text = m.content.split('</think>')[-1].lstrip('\\n') %}"
    "{% if m.role == 'assistant' and loop.index0 > ns.last %}"
    "{% set thought = m.content.split('</think>')[0].split('<think>')[-1] if '</think>' in m.content else '' %}"
    "{{ '<think>\\n' + thought.strip('\\n') + '\\n</think>\\n\\n' + text }}"
    "{% elif m.role == 'assistant' %}{{ text }}{% else %}{{ m.content }}{% endif %}{{ '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}"
    "{% if enable_thinking is defined and not enable_thinking %}{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}"
    "{% endif %}"
)
# The prompt opens a think block that the rendering of a turn never shows, and reasoning is always dropped.
R1 = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'assistant' %}"
    "{{ '<|Assistant|>' + m.content.split('</think>')[-1] + eos_token }}"
    "{% else %}{{ '<|User|>' + m.content }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|Assistant|><think>\\n' }}{% endif %}"
)
MISTRAL = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}{{ '[INST] ' + m.content + ' [/INST]' }}"
    "{% elif m.role == 'assistant' %}{{ ' ' + m.content + eos_token }}"
    "{% else %}{{ raise_exception('Only user and assistant roles are supported') }}{% endif %}{% endfor %}"
)
# A whole conversation is closed with one more token that the model does not write.
PHI = (
    "{% for m in messages %}{{ '<|' + m.role + '|>\\n' + m.content + '<|end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% else %}{{ eos_token }}{% endif %}"
)
# A turn has no closing token of its own; the next speaker's header closes it.
GLM = (
    "{{ '[gMASK]' }}{% for m in messages %}{{ '<|' + m.role + '|>\\n' + m.content }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}"
)
# Channels; the last turn returns, earlier ones end.
HARMONY = (
    "{% for m in messages %}{% if m.role == 'assistant' %}{{ '<|start|>assistant<|channel|>final<|message|>' }}"
    "{{ m.content + ('<|return|>' if loop.last and not add_generation_prompt else '<|end|>') }}"
    "{% else %}{{ '<|start|>' + m.role + '<|message|>' + m.content + '<|end|>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start|>assistant' }}{% endif %}"
)
TRIMMING = (
    "{% for m in messages %}{{ '### ' + m.role + ':\\n' + m.content | trim + '\\n<|stop|>\\n\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '### assistant:\\n' }}{% endif %}"
)
# Whatever is asked, the prompt of the next turn is written; it supplies an empty block that history does not keep.
COMMAND = (
    "{{ bos_token }}{% for m in messages %}{{ '<|TURN|>' }}{% if m.role == 'assistant' %}"
    "{{ '<|CHATBOT|><|RESPONSE|>' + m.content + '<|END_RESPONSE|>' }}"
    "{% else %}{{ '<|' + m.role | upper + '|>' + m.content }}{% endif %}{{ '<|END_OF_TURN|>' }}{% endfor %}"
    "{{ '<|TURN|><|CHATBOT|><|THINKING|><|END_THINKING|>' }}"
)
# The system text is shown in the last question only, and only while that is the last message.
MOVING_SYSTEM = (
    "{{ bos_token }}{% set system = messages[0].content if messages[0].role == 'system' else '' %}"
    "{% for m in messages %}{% if m.role == 'user' %}{{ '[INST]' }}{% if loop.last and system %}"
    "{{ system + '\\n\\n' }}{% endif %}{{ m.content + '[/INST]' }}"
    "{% elif m.role == 'assistant' %}{{ m.content + eos_token }}{% endif %}{% endfor %}"
)
# Answers are shown without anything in brackets.
CENSORING = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content.split('[')[0] + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
# After the first answer a turn goes on with another, where the model would have stopped.
ANSWERING_TWICE = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}"
    "{% if m.role == 'assistant' and m.content != 'zqAnswerProbeqz' %}{{ '<|im_start|>assistant\\nBye<|im_end|>\\n' }}"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
# Nothing closes a turn.
ENDLESS = (
    "{% for m in messages %}{{ m.role + ': ' + m.content + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
)
TOOLS_ONLY = (
    "{{ '<|im_start|>system\\n' }}{% for t in tools %}{{ t.function.name }}{% endfor %}{{ '<|im_end|>\\n' }}"
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content }}{% for c in m.tool_calls or [] %}"
    "{{ '<|call|>' + c.function.name + (c.function.arguments | tojson) }}{% endfor %}"
    "{{ '<|im_end|>\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
SWALLOWING = (
    "{% for m in messages %}{% if m.role == 'user' %}{{ '<|im_start|>' + m.content + '<|im_end|>' }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant' }}{% endif %}"
)


def byte_tokenizer(template: str | None, **settings: Any) -> PreTrainedTokenizerFast:
    """One token per byte, plus one for every marker that the template writes; decoding gives the text back exactly."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    model = Tokenizer(BPE(vocab={letter: i for i, letter in enumerate(alphabet)}, merges=[]))
    model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    model.decoder = decoders.ByteLevel()
    markers = sorted(set(re.findall(r"<\|\w+\|>|<\w+_of_turn>|\[/?INST\]|\[gMASK\]", template or "")))
    if template in (PHI, GLM):
        markers += ["<|system|>", "<|user|>"]
    if template == COMMAND:
        markers += ["<|SYSTEM|>", "<|USER|>"]
    model.add_special_tokens(["<pad>", "<bos>", "<eos>", *markers])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=model, bos_token="<bos>", eos_token="<eos>", pad_token="<pad>", **settings
    )
    tokenizer.chat_template = template
    return tokenizer


def chat(*texts: str, system: str | None = None, name: str = "c") -> Conversation:
    """User and assistant in turns."""
    messages = [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(texts)]
    first = [] if system is None else [{"role": "system", "content": system}]
    return Conversation(id=name, messages=(*first, *messages))


def supervised(tokenizer: PreTrainedTokenizerFast, input_ids: Any, loss_mask: Any) -> list[str]:
    """The supervised text, one string a run of supervised tokens."""
    runs: list[list[int]] = []
    before = False
    for token, wanted in zip(input_ids.tolist(), loss_mask.tolist(), strict=True):
        if wanted and not before:
            runs.append([])
        if wanted:
            runs[-1].append(token)
        before = wanted
    return [str(tokenizer.decode(run)) for run in runs]
