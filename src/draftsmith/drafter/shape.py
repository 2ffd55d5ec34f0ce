"""What a drafter is made of, and how that is written down.

The configuration of a published drafter is built from this whitelist, never copied from the target: fields such as
partial rotary factors mean something to an engine that the drafter was not trained with.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from draftsmith.config import DrafterConfig
from draftsmith.errors import ConfigError, ModelError


@dataclass(frozen=True)
class DrafterShape:
    """Sizes and ids of a drafter. H must equal the target's hidden size, V its number of embedding rows."""

    num_hidden_layers: int
    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    max_position_embeddings: int
    vocab_size: int
    block_size: int
    mask_token_id: int
    target_layer_ids: tuple[int, ...]
    num_target_layers: int
    bos_token_id: int | None = None
    eos_token_id: int | None = None

    def to_config(self) -> dict[str, Any]:
        """config.json in the z-lab layout, with block size and rotary base where each engine looks for them."""
        config: dict[str, Any] = {
            "architectures": ["DFlashDraftModel"],
            "model_type": "qwen3",
            "dtype": "bfloat16",
            "torch_dtype": "bfloat16",
            "block_size": self.block_size,
            "dflash_config": {
                "block_size": self.block_size,
                "mask_token_id": self.mask_token_id,
                "target_layer_ids": list(self.target_layer_ids),
            },
            "layer_types": ["full_attention"] * self.num_hidden_layers,
            "use_sliding_window": False,
            "sliding_window": None,
            "max_window_layers": self.num_hidden_layers,
            "hidden_act": "silu",
            "attention_bias": False,
            "attention_dropout": 0.0,
            "rope_scaling": None,
            "rope_parameters": {"rope_type": "default", "rope_theta": self.rope_theta},
            "tie_word_embeddings": False,
            "initializer_range": 0.02,
            "use_cache": True,
        }
        nested = {"block_size", "mask_token_id", "target_layer_ids"}
        for field in dataclasses.fields(self):
            if field.name not in nested:
                config[field.name] = getattr(self, field.name)
        return config

    @staticmethod
    def from_config(config: dict[str, Any]) -> DrafterShape:
        """Read back what `to_config` writes. Raises ModelError that names the missing or unsupported key."""
        _refuse_unsupported(config)
        try:
            values = {**config, **config["dflash_config"]}
            values["target_layer_ids"] = tuple(values["target_layer_ids"])
            names = [field.name for field in dataclasses.fields(DrafterShape)]
            optional = {"bos_token_id", "eos_token_id"}
            return DrafterShape(**{n: values[n] for n in names if n not in optional or n in values})
        except (KeyError, TypeError) as error:
            raise ModelError(f"the drafter's config.json lacks {error}; it is not a DFlash drafter") from None


def make_shape(
    config: DrafterConfig, target: Any, *, vocab_size: int, layer_ids: tuple[int, ...], mask_token_id: int
) -> DrafterShape:
    """The shape for a target's text configuration: its widths unless `config` says otherwise.

    vocab_size: rows of the target's head. Families that lack a width get the field's usual one.
    """

    def own(name: str) -> Any:
        return getattr(target, name) if hasattr(target, name) else None

    heads = config.num_attention_heads or target.num_attention_heads
    kv_heads = config.num_key_value_heads or min(heads, own("num_key_value_heads") or heads)
    head_dim = config.head_dim or own("head_dim")
    if heads % kv_heads:
        raise ConfigError(
            f"drafter.num_attention_heads is {heads}, which is no multiple of num_key_value_heads {kv_heads}"
        )
    rope = own("rope_parameters") or {}
    rope = rope.get("full_attention", rope)  # models with several kinds of layers keep one entry per kind
    return DrafterShape(
        num_hidden_layers=config.num_layers,
        hidden_size=target.hidden_size,
        intermediate_size=config.intermediate_size or own("intermediate_size") or 3 * target.hidden_size,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim or target.hidden_size // heads,
        rms_norm_eps=1e-6,
        rope_theta=float(rope.get("rope_theta", 10000.0)),
        max_position_embeddings=own("max_position_embeddings") or 32768,
        vocab_size=vocab_size,
        block_size=config.block_size,
        mask_token_id=mask_token_id,
        target_layer_ids=layer_ids,
        num_target_layers=target.num_hidden_layers,
        bos_token_id=_first(own("bos_token_id")),
        eos_token_id=_first(own("eos_token_id")),
    )


def _refuse_unsupported(config: dict[str, Any]) -> None:
    """What other trainers may write and this network does not compute must not be read as if it did."""
    extra = config.get("dflash_config") or {}
    found = {
        "layer_types": sorted(set(config.get("layer_types") or ["full_attention"])),
        "attention_bias": bool(config.get("attention_bias")),
        "hidden_act": config.get("hidden_act", "silu"),
        "rope_scaling": config.get("rope_scaling"),
        "is_causal": bool(config.get("is_causal") or extra.get("causal")),
        "use_swa": bool(extra.get("use_swa")),
    }
    known = {"layer_types": ["full_attention"], "attention_bias": False, "hidden_act": "silu"}
    known |= {"rope_scaling": None, "is_causal": False, "use_swa": False}
    for name, value in found.items():
        if value != known[name]:
            raise ModelError(f"the drafter's config.json has {name} {value!r}; only {known[name]!r} is supported")


def _first(token_id: int | list[int] | None) -> int | None:
    return token_id[0] if isinstance(token_id, list) else token_id
