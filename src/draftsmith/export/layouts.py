"""The three layouts that are a config.json and a model.safetensors: the same tensors under the names each engine knows.

| layout | read by | names |
|---|---|---|
| hf | vLLM, SGLang, MLX, z-lab's own code | z-lab's; ids of tapped layers as they are |
| speculators | `vllm serve <directory>`, speculators | z-lab's, and the target's embedding and head; ids + 1 |
| transformers | Transformers' own DFlash generation | another name for projection and norm of the hidden states |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from draftsmith.drafter import DrafterShape
from draftsmith.errors import ModelError
from draftsmith.export.tensors import Shapes, expected_tensors

Config = dict[str, Any]

EMBEDDING, HEAD = "embed_tokens.weight", "lm_head.weight"
ASSISTANT = "muse_glimmer_assistant"  # the model type under which Transformers 5.24 carries a DFlash network


@dataclass(frozen=True)
class Verifier:
    """How the target is called in a configuration that names it."""

    name: str
    architectures: tuple[str, ...] = ()


@dataclass(frozen=True)
class Layout:
    """to_config and from_config are inverse but for the verifier; `renamed` maps z-lab names to this layout's."""

    name: str
    to_config: Callable[[DrafterShape, Verifier], Config]
    from_config: Callable[[Config], DrafterShape]
    renamed: Mapping[str, str] = field(default_factory=dict)
    with_target_tensors: bool = False

    def expected(self, shape: DrafterShape) -> Shapes:
        """Every tensor of the file and its shape."""
        own = {self.renamed.get(name, name): size for name, size in expected_tensors(shape).items()}
        rows = (shape.vocab_size, shape.hidden_size)
        return own | ({EMBEDDING: rows, HEAD: rows} if self.with_target_tensors else {})


def layout_of(config: Config) -> Layout:
    """Which layout a config.json belongs to."""
    if "speculators_model_type" in config:
        return SPECULATORS
    return TRANSFORMERS if config.get("model_type") == ASSISTANT else HF


def _speculators_config(shape: DrafterShape, verifier: Verifier) -> Config:
    network = shape.to_config()
    for key in ("architectures", "dflash_config", "block_size"):
        del network[key]
    proposal = {"proposal_type": "greedy", "speculative_tokens": shape.block_size - 1}
    return {
        "architectures": ["DFlashSpeculator"],
        "speculators_model_type": "dflash",
        "dtype": "bfloat16",
        "transformer_layer_config": network,
        "block_size": shape.block_size,
        "draft_vocab_size": shape.vocab_size,
        "target_hidden_size": shape.hidden_size,
        # vLLM counts states, the embedding being number 0, so the output of block i is number i + 1.
        "aux_hidden_state_layer_ids": [i + 1 for i in shape.target_layer_ids],
        "mask_token_id": shape.mask_token_id,
        # The name speaks of windows only, but vLLM 0.32 makes every layer causal when it is false.
        # https://github.com/vllm-project/vllm/pull/47453
        "sliding_window_non_causal": True,
        "sample_from_anchor": False,
        "tie_word_embeddings": False,
        "speculators_config": {
            "algorithm": "dflash",
            "default_proposal_method": "greedy",
            "proposal_methods": [proposal | {"verifier_accept_k": 1, "accept_tolerance": 0.0}],
            "verifier": {"name_or_path": verifier.name, "architectures": list(verifier.architectures)},
        },
    }


def _from_speculators(config: Config) -> DrafterShape:
    if config.get("sample_from_anchor"):
        raise ModelError(
            "the drafter's config.json has sample_from_anchor true, which is not how DFlash was trained here"
        )
    if config.get("draft_vocab_size") != config["transformer_layer_config"]["vocab_size"]:
        raise ModelError("the drafter's config.json has a draft vocabulary of its own, which is not supported")
    ids = {"block_size": config["block_size"], "mask_token_id": config["mask_token_id"]}
    ids["target_layer_ids"] = [i - 1 for i in config["aux_hidden_state_layer_ids"]]
    return DrafterShape.from_config({**config["transformer_layer_config"], "dflash_config": ids})


def _assistant_config(shape: DrafterShape, _verifier: Verifier) -> Config:
    network = shape.to_config()
    kept = {
        *("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads"),
        *("head_dim", "rms_norm_eps", "rope_parameters", "max_position_embeddings", "layer_types", "hidden_act"),
        *("attention_dropout", "bos_token_id", "eos_token_id", "block_size", "dtype"),
        *("vocab_size", "num_target_layers"),  # unknown there; here they tell which target the drafter belongs to
    }
    return {
        "architectures": ["MuseGlimmerAssistantModel"],
        "model_type": ASSISTANT,
        **{key: value for key, value in network.items() if key in kept},
        "pad_token_id": None,
        "mask_token_id": shape.mask_token_id,
        "target_layer_ids": list(shape.target_layer_ids),
    }


def _from_assistant(config: Config) -> DrafterShape:
    ids = {key: config[key] for key in ("block_size", "mask_token_id", "target_layer_ids")}
    return DrafterShape.from_config(
        {**config, "dflash_config": ids, "rope_theta": config["rope_parameters"]["rope_theta"]}
    )


HF = Layout("hf", lambda shape, _verifier: shape.to_config(), DrafterShape.from_config)
SPECULATORS = Layout("speculators", _speculators_config, _from_speculators, with_target_tensors=True)
TRANSFORMERS = Layout(
    "transformers",
    _assistant_config,
    _from_assistant,
    {"fc.weight": "encoder.fc.weight", "hidden_norm.weight": "encoder.output_norm_enc.weight"},
)
LAYOUTS = {layout.name: layout for layout in (HF, SPECULATORS, TRANSFORMERS)}
