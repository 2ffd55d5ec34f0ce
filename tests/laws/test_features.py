"""Hidden states, taps, heads and positions are exactly those that the published convention means."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import draftsmith.drafter.model as network
from draftsmith.config import TargetConfig
from draftsmith.drafter.model import rotary, rotate
from draftsmith.errors import ConfigError, ModelError
from draftsmith.target import (
    PositionCache,
    RemoteWorker,
    Target,
    default_layer_ids,
    load_target,
    resolve_mask_token_id,
    serve_target,
)
from draftsmith.target.paged import paged_zeros
from helpers import feature_batch, new_drafter, random_text
from tolerances import OTHER_IMPLEMENTATION, ROTARY_ANGLE, SAME_NETWORK


def hidden_states(target: Target, input_ids: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        states = target.model(input_ids, output_hidden_states=True).hidden_states
    return torch.cat([states[i + 1] for i in target.layer_ids], dim=-1)


def test_features_equal_the_hidden_states_that_transformers_reports_after_each_tapped_layer(target: Target) -> None:
    input_ids = random_text(0, 3, 25)
    torch.testing.assert_close(target.features(input_ids), hidden_states(target, input_ids), **SAME_NETWORK)


def test_features_of_a_cached_forward_equal_those_of_one_pass(target: Target) -> None:
    input_ids = random_text(1, 2, 20)
    positions = torch.arange(20).expand(2, -1)
    cache = PositionCache(20)
    parts = [
        target.forward(input_ids[:, a:b], positions[:, a:b], cache, capture=True)[1] for a, b in [(0, 12), (12, 20)]
    ]
    torch.testing.assert_close(torch.cat(parts, dim=1), target.features(input_ids), **SAME_NETWORK)


class Elsewhere:
    """A target in another process, which says and gives this; another time, perhaps, something else."""

    def __init__(self, said: Any, found: Any) -> None:
        self.said, self._found = said, found

    def word(self, within_s: float | None = None) -> Any:
        return self.said

    def __call__(self, _batch: Any, /) -> Any:
        return self._found

    def when_there(self, tell: Callable[[bool], None]) -> None:
        raise NotImplementedError


def test_a_target_that_comes_back_elsewhere_with_other_weights_is_refused_and_its_new_place_known() -> None:
    here = load_target(TargetConfig(model="tiny-random", dtype="float32"))
    compute, said = serve_target({"model": "tiny-random", "dtype": "float32"}, "cpu", 1, False)
    batch = feature_batch(here, [[5, 6, 7], [8, 9]], [1, 1]).batch
    elsewhere = Elsewhere(said, compute(batch))
    worker = RemoteWorker(elsewhere, here, here.device)
    elsewhere.said = replace(said, place="cuda:0 of another")
    worker(batch)
    assert worker.place == "cuda:0 of another"
    elsewhere.said = replace(said, fingerprint="0" * 64)
    with pytest.raises(ModelError, match="has read other weights for tiny-random than the drafter"):
        worker(batch)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_features_from_elsewhere_are_read_where_nobody_may_write_without_a_copy_or_a_warning(dtype: str) -> None:
    here = load_target(TargetConfig(model="tiny-random", dtype=dtype))
    compute, said = serve_target({"model": "tiny-random", "dtype": dtype}, "cpu", 1, False)
    batch = feature_batch(here, [[5, 6, 7], [8, 9]], [1, 1]).batch
    found = compute(batch)
    found.flags.writeable = False
    torch.set_warn_always(True)
    with warnings.catch_warnings(action="error"):
        hidden = RemoteWorker(Elsewhere(said, found), here, here.device)(batch).receive().target_hidden
    torch.set_warn_always(False)
    assert torch.equal(hidden, here.features(batch.input_ids))
    assert hidden.data_ptr() == found.ctypes.data


def test_a_token_written_over_a_rejected_one_leaves_no_trace(target: Target) -> None:
    ids = random_text(2, 1, 20)
    positions = torch.arange(20)[None]
    cache = PositionCache(20)
    target.forward(ids[:, :10], positions[:, :10], cache)
    target.forward(random_text(3, 1, 8), positions[:, 10:18], cache)  # rejected from position 11 on
    logits, _ = target.forward(ids[:, 10:], positions[:, 10:], cache)
    with torch.no_grad():
        expected = target.model(ids).logits[:, 10:]
    torch.testing.assert_close(logits, expected, **SAME_NETWORK)


@pytest.mark.smollm2
def test_on_smollm2_features_equal_hidden_states_and_the_head_is_the_embedding() -> None:
    smollm2 = load_target(TargetConfig(model="smollm2-135m", dtype="float32"))
    input_ids = torch.arange(100, 112)[None]
    assert smollm2.layer_ids == (1, 8, 14, 20, 27)
    torch.testing.assert_close(smollm2.features(input_ids), hidden_states(smollm2, input_ids), **OTHER_IMPLEMENTATION)
    assert smollm2.head.weight is smollm2.embedding.weight


def test_with_tied_embeddings_the_head_is_the_embedding(target: Target) -> None:
    assert target.model.config.tie_word_embeddings
    assert target.head.weight is target.embedding.weight


def test_without_tied_embeddings_the_head_is_the_models_own() -> None:
    config = LlamaConfig(
        vocab_size=50,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=4,
        num_attention_heads=2,
        tie_word_embeddings=False,
    )
    model = LlamaForCausalLM(config)
    untied = Target(model, layer_ids=[1], num_taps=1, name="untied")
    assert untied.head.weight is model.lm_head.weight
    assert not torch.equal(untied.head.weight, untied.embedding.weight)


@pytest.mark.parametrize(
    ("num_layers", "num_taps", "expected"),
    [
        (36, 5, (1, 9, 17, 25, 33)),
        (28, 5, (1, 7, 13, 19, 25)),
        (64, 5, (1, 16, 31, 46, 61)),
        (40, 8, (1, 6, 11, 16, 22, 27, 32, 37)),
        (24, 5, (1, 6, 11, 16, 21)),
        (36, 1, (18,)),
    ],
)
def test_default_taps_are_those_of_the_published_drafters(
    num_layers: int, num_taps: int, expected: tuple[int, ...]
) -> None:
    assert default_layer_ids(num_layers, num_taps) == expected


@pytest.mark.parametrize("layer_ids", [[7], [1, 1], [3, 2], [-1, 2], []])
def test_taps_that_engines_read_otherwise_are_refused(layer_ids: list[int], target: Target) -> None:
    with pytest.raises(ConfigError, match=r"target\.layer_ids is .* between 0 and 6 .* lower target\.num_taps"):
        Target(target.model, layer_ids=layer_ids, num_taps=1, name="tiny")


def test_more_taps_than_layers_can_give_are_refused(target: Target) -> None:
    with pytest.raises(ConfigError, match=r"target\.num_taps"):
        Target(target.model, layer_ids=None, num_taps=7, name="tiny")


def test_layers_whose_state_cannot_be_rewound_are_refused(target: Target) -> None:
    class Hybrid:
        """Just enough of a model to be read."""

        def __init__(self, model: Any) -> None:
            self.config = LlamaConfig(num_hidden_layers=8)
            self.config.layer_types = ["linear_attention", "full_attention"] * 4
            self.model = model

        def eval(self) -> Hybrid:
            return self

        def requires_grad_(self, _wanted: bool) -> Hybrid:
            return self

        def get_decoder(self) -> Hybrid:
            return self

        def get_output_embeddings(self) -> Any:
            return self.model.get_output_embeddings()

    with pytest.raises(ModelError, match="linear_attention"):
        Target(Hybrid(target.model), layer_ids=[1], num_taps=1, name="hybrid")


def test_rotary_angles_are_fp32_whatever_the_precision_of_the_drafter(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables: list[tuple[torch.Tensor, torch.Tensor]] = []

    def recorded(positions: torch.Tensor, head_dim: int, theta: float) -> tuple[torch.Tensor, torch.Tensor]:
        tables.append(rotary(positions, head_dim, theta))
        return tables[-1]

    monkeypatch.setattr(network, "rotary", recorded)
    drafter = new_drafter(target).to(torch.bfloat16)
    assert not list(drafter.buffers())  # nothing that a cast could round
    positions = torch.tensor([[0, 1, 255, 1000, 4095]])
    drafter.context(torch.zeros(1, 5, target.feature_size), positions)
    half = drafter.shape.head_dim // 2
    angles = positions[0, :, None].double() * drafter.shape.rope_theta ** -(torch.arange(half).double() / half)
    ((cosine, sine),) = tables
    assert cosine.dtype == sine.dtype == torch.float32
    expected = torch.cat([angles, angles], dim=-1)[None, None]
    torch.testing.assert_close(cosine.double(), expected.cos(), **ROTARY_ANGLE)
    torch.testing.assert_close(sine.double(), expected.sin(), **ROTARY_ANGLE)


def test_rotated_products_depend_on_the_distance_alone() -> None:
    query, key = torch.randn(2, 1, 1, 1, 16, generator=torch.Generator().manual_seed(0))
    products = []
    for start in (0, 17, 300):
        table = rotary(torch.tensor([[start, start + 5]]), 16, 10000.0)
        turned = rotate(torch.cat([query, key], dim=2), table)
        products.append(float(turned[0, 0, 0] @ turned[0, 0, 1]))
    assert products == pytest.approx([products[0]] * 3, abs=1e-4)


def test_the_mask_token_is_a_reserved_one_and_no_other_is_accepted(target: Target, tokenizer: Any) -> None:
    facts = {"vocab_size": target.vocab_size, "eos_token_ids": target.eos_token_ids}
    assert resolve_mask_token_id(tokenizer, **facts) == tokenizer.convert_tokens_to_ids("<|reserved|>")
    wider = {**facts, "vocab_size": target.vocab_size + 8}
    assert resolve_mask_token_id(tokenizer, **wider) == len(tokenizer)  # rows beyond the tokenizer's ids come first
    for token, reason in [
        ("<unk>", "which is the unk token"),
        ("<|im_start|>", "which the chat template writes"),
        ("<|im_end|>", "which is the eos token"),
        ("u", "which the chat template writes"),
    ]:
        with pytest.raises(ConfigError, match=reason):
            resolve_mask_token_id(tokenizer, **facts, requested=tokenizer.convert_tokens_to_ids(token))
    with pytest.raises(ConfigError, match=f"outside the target's vocabulary of {target.vocab_size}"):
        resolve_mask_token_id(tokenizer, **facts, requested=target.vocab_size)


def test_a_target_is_named_by_its_weights_and_not_by_its_place(target: Target) -> None:
    again = load_target(TargetConfig(model="tiny-random", dtype="float32"))
    assert again.fingerprint() == target.fingerprint()
    with torch.no_grad():
        for parameter in again.model.parameters():
            parameter *= 1.0001
    assert again.fingerprint() != target.fingerprint()


def test_memory_of_large_hidden_states_goes_back_to_the_system_at_once() -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    shape = (16, 1024, 256)  # 16 MiB in fp32: malloc would keep it
    before = resident()
    made = [paged_zeros(*shape, dtype=torch.float32).add_(1) for _ in range(4)]
    assert resident() - before > 60 * 2**20
    assert all(tensor.data_ptr() % 64 == 0 for tensor in made)
    made.clear()
    assert resident() - before < 8 * 2**20
