"""The page that stands beside an exported drafter: what it is for, how good it is, how to serve it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from draftsmith.drafter import DrafterShape
from draftsmith.target import hub_name

HERE = "<this directory>"


def model_card(
    shape: DrafterShape, summary: Mapping[str, Any], *, format: str = "hf", settings: Mapping[str, Any] | None = None
) -> str:
    """Markdown. Figures stand there only if they were measured.

    settings: what a reader should know of the run's configuration, by name.
    """
    target = summary["target"]
    lines = [
        "---",
        "library_name: draftsmith",
        f"base_model: {hub_name(target)}",
        f"draftsmith_target: {target}",
        "tags: [speculative-decoding, dflash]",
        "---",
        "",
        f"# DFlash drafter for {target}",
        "",
        f"Proposes blocks of {shape.block_size} tokens (the known one included) for `{target}`. "
        "The target verifies each block, so what it answers does not change.",
        "",
        *_training(shape, summary, settings or {}),
        *_measured(summary),
        "",
        "## Serve",
        "",
        *_commands(shape, hub_name(target), format),
    ]
    return "\n".join(lines) + "\n"


def target_on_card(directory: Path) -> str | None:
    """The target that the card beside an export names."""
    try:
        text = (directory / "README.md").read_text(encoding="utf-8")
    except OSError:
        return None
    found = re.search(r"^draftsmith_target: (\S+)$", text, flags=re.MULTILINE)
    return found.group(1) if found else None


def _training(shape: DrafterShape, summary: Mapping[str, Any], settings: Mapping[str, Any]) -> list[str]:
    lines = [
        f"- layers {shape.num_hidden_layers}, hidden size {shape.hidden_size}, taps {list(shape.target_layer_ids)} "
        f"of {shape.num_target_layers} layers, mask token {shape.mask_token_id}",
        f"- trained for {summary['train_steps']:,} steps on {summary['num_anchors_trained']:,} blocks, "
        f"seed {summary['seed']}",
    ]
    return lines + [f"- {name}: {value}" for name, value in settings.items()]


def _measured(summary: Mapping[str, Any]) -> list[str]:
    lines = [
        f"- {name}: {found['length']:.2f} tokens per target forward, pooled over {found['num_verifications']:,} "
        f"verifications of {found['num_prompts']} prompts ({found['length_by_response']:.2f} as a mean of answers)"
        for name, found in summary.get("sets", {}).items()
    ]
    if lines and summary.get("decoding", "greedy") != "greedy":
        lines.append(f"- answers {summary['decoding']}")
    if summary.get("lossless") is not None:
        lines.append(
            f"- {summary['num_lossless']} of {summary['num_lossless_checked']} answers equal those of the target alone "
            f"({summary['eval_dtype']})"
        )
    return lines


def _commands(shape: DrafterShape, target: str, format: str) -> list[str]:
    """The exact command of every engine that reads this format."""
    lines = []
    for engine, command in ENGINES[format].items():
        lines += [f"{engine}:", "", "```", *command(shape, target), "```", ""]
    return lines[:-1]


def _vllm(shape: DrafterShape, target: str) -> list[str]:
    config = f'{{"method": "dflash", "model": "{HERE}", "num_speculative_tokens": {shape.block_size - 1}}}'
    return [f"vllm serve {target} --speculative-config '{config}'"]


def _vllm_alone(_shape: DrafterShape, _target: str) -> list[str]:
    return [f"vllm serve {HERE}"]


def _sglang(shape: DrafterShape, target: str) -> list[str]:
    return [
        f"python -m sglang.launch_server --model-path {target} --speculative-algorithm DFLASH "
        f"--speculative-draft-model-path {HERE} --speculative-num-draft-tokens {shape.block_size}"
    ]


def _transformers(_shape: DrafterShape, target: str) -> list[str]:
    return [
        "from transformers import AutoModel, AutoModelForCausalLM, AutoTokenizer",
        "",
        f'tokenizer = AutoTokenizer.from_pretrained("{target}")',
        f'target = AutoModelForCausalLM.from_pretrained("{target}")',
        f'drafter = AutoModel.from_pretrained("{HERE}", dtype=target.dtype)',
        'asked = [{"role": "user", "content": "What is the capital of France?"}]',
        'prompt = tokenizer.apply_chat_template(asked, add_generation_prompt=True, return_tensors="pt")',
        'answer = target.generate(**prompt, assistant_model=drafter, speculation_type="dflash", do_sample=False)',
    ]


def _llama_cpp(shape: DrafterShape, _target: str) -> list[str]:
    return [
        "llama-server -m <the target's .gguf> -md <the .gguf of this directory> --spec-type draft-dflash "
        f"--spec-draft-n-max {shape.block_size - 1}"
    ]


ENGINES: dict[str, dict[str, Callable[[DrafterShape, str], list[str]]]] = {
    "hf": {"vLLM": _vllm, "SGLang": _sglang},
    "speculators": {"vLLM, target and drafter together": _vllm_alone, "vLLM": _vllm},
    "transformers": {"Transformers": _transformers},
    "gguf": {"llama.cpp": _llama_cpp},
}
