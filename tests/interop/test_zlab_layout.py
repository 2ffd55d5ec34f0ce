"""The exported directory: names, shapes and keys written down here by hand, and nothing else accepted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig

from draftsmith.config import parse_config
from draftsmith.drafter import Drafter, DrafterShape
from draftsmith.errors import ExportError, ModelError
from draftsmith.export import export_drafter, model_card, read_drafter
from draftsmith.run.exporting import card_of
from draftsmith.target import Target
from helpers import new_drafter

LAYER = {
    "input_layernorm.weight": [64],
    "self_attn.q_proj.weight": [64, 64],
    "self_attn.k_proj.weight": [32, 64],
    "self_attn.v_proj.weight": [32, 64],
    "self_attn.o_proj.weight": [64, 64],
    "self_attn.q_norm.weight": [16],
    "self_attn.k_norm.weight": [16],
    "post_attention_layernorm.weight": [64],
    "mlp.gate_proj.weight": [128, 64],
    "mlp.up_proj.weight": [128, 64],
    "mlp.down_proj.weight": [64, 128],
}
TENSORS = {
    "fc.weight": [64, 5 * 64],
    "hidden_norm.weight": [64],
    "norm.weight": [64],
    **{f"layers.{index}.{name}": size for index in range(2) for name, size in LAYER.items()},
}


@pytest.fixture
def exported(trained: Drafter, tmp_path: Path) -> Path:
    return export_drafter(trained, tmp_path / "drafter", card="# A card\n")


def test_names_shapes_and_types_are_exactly_those_of_the_layout(exported: Path) -> None:
    tensors = load_file(exported / "model.safetensors")
    assert {name: list(tensor.shape) for name, tensor in tensors.items()} == TENSORS
    assert len(tensors) == 11 * 2 + 3
    assert {tensor.dtype for tensor in tensors.values()} == {torch.bfloat16}
    assert sorted(path.name for path in exported.iterdir()) == ["README.md", "config.json", "model.safetensors"]


def test_config_json_holds_what_engines_read(exported: Path, target: Target) -> None:
    config = json.loads((exported / "config.json").read_text(encoding="utf-8"))
    assert config == {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "dtype": "bfloat16",
        "torch_dtype": "bfloat16",
        "block_size": 8,
        "num_target_layers": 8,
        "dflash_config": {"block_size": 8, "mask_token_id": 3, "target_layer_ids": [1, 2, 3, 4, 5]},
        "num_hidden_layers": 2,
        "layer_types": ["full_attention", "full_attention"],
        "use_sliding_window": False,
        "sliding_window": None,
        "max_window_layers": 2,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-06,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "rope_theta": 10000.0,
        "rope_scaling": None,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "max_position_embeddings": 2048,
        "vocab_size": target.vocab_size,
        "tie_word_embeddings": False,
        "initializer_range": 0.02,
        "use_cache": True,
        "bos_token_id": None,
        "eos_token_id": 2,
    }


def test_transformers_reads_the_configuration_without_remote_code(exported: Path) -> None:
    config = AutoConfig.from_pretrained(exported)
    assert config.model_type == "qwen3"
    assert (config.num_hidden_layers, config.hidden_size, config.head_dim) == (2, 64, 16)
    assert config.rope_parameters["rope_theta"] == 10000.0
    assert config.dflash_config["target_layer_ids"] == [1, 2, 3, 4, 5]


def test_a_round_trip_gives_the_same_bits_and_the_same_shape(exported: Path, trained: Drafter) -> None:
    back = read_drafter(exported)
    assert back.shape == trained.shape
    for name, tensor in trained.state_dict().items():
        assert torch.equal(back.state_dict()[name], tensor.to(torch.bfloat16)), name
    again = read_drafter(export_drafter(back, exported.parent / "again", card=""))
    assert (exported.parent / "again" / "model.safetensors").read_bytes() == (
        exported / "model.safetensors"
    ).read_bytes()
    hidden, positions = torch.ones(1, 3, 5 * 64).bfloat16(), torch.arange(5)[None]
    states = [
        d(torch.ones(1, 2, 64).bfloat16(), positions[:, 3:], d.context(hidden, positions[:, :3]), None)
        for d in (back, again)
    ]
    assert torch.equal(*states)


def mutations() -> dict[str, Any]:
    """Every single-tensor mistake: renamed, missing, extra, transposed, of another type or size."""
    made: dict[str, Any] = {}
    for name, size in TENSORS.items():
        made[f"{name} missing"] = lambda t, n=name: t.pop(n)
        made[f"{name} in fp32"] = lambda t, n=name: t.update({n: t[n].float()})
        made[f"{name} with a prefix"] = lambda t, n=name: t.update({"model." + n: t.pop(n)})
        made[f"{name} one row short"] = lambda t, n=name: t.update({n: t[n][1:].clone()})
        if len(size) == 2 and size[0] != size[1]:
            made[f"{name} transposed"] = lambda t, n=name: t.update({n: t[n].T.contiguous()})
    for extra in ("embed_tokens.weight", "lm_head.weight", "layers.2.input_layernorm.weight", "rotary_emb.inv_freq"):
        made[f"{extra} besides"] = lambda t, n=extra: t.update({n: torch.zeros(4).bfloat16()})
    made["norm.weight not finite"] = lambda t: t["norm.weight"].fill_(float("nan"))
    return made


@pytest.mark.parametrize("mutation", mutations())
def test_every_single_wrong_tensor_is_refused_by_name(mutation: str, exported: Path) -> None:
    tensors = load_file(exported / "model.safetensors")
    mutations()[mutation](tensors)
    save_file(tensors, exported / "model.safetensors")
    with pytest.raises(ExportError, match=mutation.split()[0].replace(".", r"\.")):
        read_drafter(exported)


@pytest.mark.parametrize("key", ["hidden_size", "dflash_config", "num_target_layers", "rope_theta", "vocab_size"])
def test_a_missing_key_of_the_configuration_is_named(key: str, exported: Path) -> None:
    config = json.loads((exported / "config.json").read_text(encoding="utf-8"))
    del config[key]
    (exported / "config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(ModelError, match=key):
        read_drafter(exported)


def test_windowed_layers_are_refused_because_they_are_not_what_was_trained(trained: Drafter) -> None:
    config = trained.shape.to_config()
    config["layer_types"] = ["sliding_attention", "full_attention"]
    with pytest.raises(ModelError, match="sliding_attention"):
        DrafterShape.from_config(config)


def test_an_existing_destination_is_refused_and_left_alone(exported: Path, trained: Drafter) -> None:
    before = {path.name: path.read_bytes() for path in exported.iterdir()}
    with pytest.raises(ExportError, match="already exists; choose another directory, or remove it first"):
        export_drafter(trained, exported, card="other")
    assert {path.name: path.read_bytes() for path in exported.iterdir()} == before


def test_weights_that_are_not_finite_are_not_exported(target: Target, tmp_path: Path) -> None:
    drafter = new_drafter(target)
    with torch.no_grad():
        drafter.fc.weight[0, 0] = float("inf")
    with pytest.raises(ExportError, match=r"fc\.weight has values that are not finite"):
        export_drafter(drafter, tmp_path / "drafter", card="")
    assert not list(tmp_path.iterdir())


def test_the_card_names_every_source_and_the_learning_rate_of_the_optimizer_that_trained(trained: Drafter) -> None:
    settings = {
        "target": {"model": "tiny-random"},
        "data": {"sources": ["3:chat.jsonl", "1:code.parquet"]},
        "train": {"max_steps": 1, "optimizer": "muon", "muon_lr": 0.03},
    }
    summary = {"target": "tiny-random", "train_steps": 1, "num_anchors_trained": 8, "seed": 0}
    card = card_of(trained.shape, summary, parse_config(settings))
    assert "data: 3:chat.jsonl, 1:code.parquet, at most" in card
    assert "muon, learning rate 0.03" in card


def test_the_card_states_figures_only_if_they_were_measured(trained: Drafter) -> None:
    summary = {"target": "some/target", "train_steps": 1200, "num_anchors_trained": 4000, "seed": 3}
    card = model_card(trained.shape, summary)
    assert "# DFlash drafter for some/target" in card
    assert "tokens per target forward" not in card
    assert '"num_speculative_tokens": 7' in card
    assert "--speculative-num-draft-tokens 8" in card
    sets = {"holdout": {"length": 2.5, "num_verifications": 10, "num_prompts": 3, "length_by_response": 2.25}}
    assert "holdout: 2.50 tokens per target forward" in model_card(trained.shape, {**summary, "sets": sets})
