"""Families of models, tiny and random, windowed attention among them: taps and lossless decoding hold for all."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from draftsmith.evaluation import num_own, speculate
from draftsmith.target import Target, generate
from helpers import new_drafter, random_text
from tolerances import SAME_NETWORK

SIZES = {
    "vocab_size": 100,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
WINDOW = 8  # shorter than every prompt
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen3": {"head_dim": 8},
    "qwen2": {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 3},
    "mistral": {"sliding_window": WINDOW},
    "phi3": {"sliding_window": WINDOW},
    "gemma2": {"head_dim": 8, "sliding_window": WINDOW, "query_pre_attn_scalar": 8},
    "gemma3_text": {"head_dim": 8, "sliding_window": WINDOW, "query_pre_attn_scalar": 8},
    "olmo2": {},
    "exaone4": {"sliding_window": WINDOW, "sliding_window_pattern": 3},
    "granite": {"embedding_multiplier": 2.0, "logits_scaling": 2.0},
    "cohere": {"logit_scale": 0.5},
    "smollm3": {},
    # Families whose blocks and widths have other names, or that have no rotary positions.
    "gpt2": {},
    "gpt_neox": {},
    "opt": {"ffn_dim": 48, "word_embed_proj_dim": 32},
}


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest) -> Target:
    config = AutoConfig.for_model(request.param, **SIZES, **FAMILIES[request.param])
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(config)
    for parameter in model.parameters():
        if parameter.dim() == 2:
            torch.nn.init.normal_(parameter, std=0.3)
    model.generation_config.eos_token_id = 2
    assert (model.config._attn_implementation == "eager") == (request.param == "gemma2")
    return Target(model, layer_ids=None, num_taps=3, name=request.param)


def test_features_equal_the_hidden_states_that_transformers_reports(family: Target) -> None:
    input_ids = random_text(0, 2, 20)
    with torch.no_grad():
        states = family.model(input_ids, output_hidden_states=True).hidden_states
    expected = torch.cat([states[i + 1] for i in family.layer_ids], dim=-1)
    torch.testing.assert_close(family.features(input_ids), expected, **SAME_NETWORK)


def test_plain_and_speculative_decoding_equal_generate_of_transformers(family: Target) -> None:
    prompts = [random_text(seed, length).tolist() for seed, length in enumerate([9, 14, 11])]
    expected = []
    for prompt in prompts:
        ids = torch.tensor([prompt])
        found = family.model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=16, do_sample=False)
        expected.append(found[0, len(prompt) :].tolist())
    assert generate(family, prompts, max_new_tokens=16) == expected
    drafter = new_drafter(family, block_size=4, num_layers=1)
    answers = [answer.tokens for answer in speculate(drafter, family, prompts, max_new_tokens=16)]
    assert answers == expected
    assert num_own(family, prompts, answers) == len(prompts)
