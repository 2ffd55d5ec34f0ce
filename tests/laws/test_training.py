"""A step: what it counts, what it leaves alone, how the learning rate moves; runs on the same key are the same run."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from draftsmith.config import RunConfig
from draftsmith.drafter import Drafter
from draftsmith.records import FeatureBatch
from draftsmith.target import Target
from draftsmith.training import TrainState, finish_step, lr_factor, make_optimizers, params_sha256, train_step
from helpers import feature_batch, new_drafter, random_text, tiny_config
from tolerances import ACCUMULATED


@pytest.fixture(scope="module")
def item(target: Target) -> FeatureBatch:
    rows = random_text(0, 3, 30).tolist()
    return feature_batch(target, [rows[0], rows[1][:20], rows[2][:11]], [10, 10, 10])


def new_state(target: Target, config: RunConfig) -> TrainState:
    return TrainState.create(new_drafter(target), config)


def test_a_step_moves_every_parameter_and_none_of_the_target(target: Target, item: FeatureBatch) -> None:
    config = tiny_config()
    state = new_state(target, config)
    before = {name: p.detach().clone() for name, p in state.drafter.named_parameters()}
    frozen = params_sha256(target.model)
    train_step(state, item, target, config, progress=0.5)
    assert not [name for name, p in state.drafter.named_parameters() if torch.equal(p, before[name])]
    assert params_sha256(target.model) == frozen
    assert all(p.grad is None for p in target.model.parameters())


def test_a_step_counts_blocks_and_real_tokens(target: Target, item: FeatureBatch) -> None:
    config = tiny_config("drafter.num_anchors=5")
    state = new_state(target, config)
    metrics = train_step(state, item, target, config, progress=0.5)
    assert metrics.num_blocks == 5 + 5 + 0  # the third row has one supervised token: no block
    assert metrics.num_tokens == 30 + 20 + 11
    assert (state.step, state.num_anchors, state.num_context_tokens, state.guards.num_skipped) == (1, 10, 61, 0)
    assert len(metrics.accuracy_by_slot) == state.drafter.shape.block_size - 1
    assert 1 <= metrics.acceptance <= state.drafter.shape.block_size


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_two_runs_of_the_same_steps_end_with_the_same_bits(optimizer: str, target: Target, item: FeatureBatch) -> None:
    config = tiny_config(f"train.optimizer={optimizer}", "train.head=sampled", "train.num_negatives=10")
    hashes = []
    for _ in range(2):
        state = TrainState.create(new_drafter(target), config, item.batch.input_ids.unique().numpy())
        for step in range(4):
            train_step(state, item, target, config, progress=step / 4)
        hashes.append(params_sha256(state.drafter))
    assert hashes[0] == hashes[1]


def test_training_makes_the_loss_smaller(target: Target, item: FeatureBatch) -> None:
    config = tiny_config()
    state = new_state(target, config)
    losses = [train_step(state, item, target, config, progress=0.2).loss for _ in range(15)]
    assert losses[-1] < 0.7 * losses[0]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_step_that_is_not_finite_changes_nothing_but_the_count(
    value: float, target: Target, item: FeatureBatch
) -> None:
    config = tiny_config()
    state = new_state(target, config)
    before = params_sha256(state.drafter)
    broken = dataclasses.replace(item, target_hidden=torch.full_like(item.target_hidden, value))
    metrics = train_step(state, broken, target, config, progress=0.5)
    assert metrics.skipped
    assert state.guards.num_skipped == 1
    assert params_sha256(state.drafter) == before
    assert not train_step(state, item, target, config, progress=0.5).skipped


def test_the_sampled_head_is_redrawn_every_few_steps(target: Target, item: FeatureBatch) -> None:
    config = tiny_config("train.head=sampled", "train.num_negatives=5", "train.negatives_every=2")
    seen = item.batch.input_ids.unique().numpy()
    seen = seen[seen < target.vocab_size]
    state = TrainState.create(new_drafter(target), config, seen)
    drawn = []
    for _ in range(4):
        train_step(state, item, target, config, progress=0.5)
        assert state.head is not None
        rows = state.head[1].rows
        drawn.append(None if rows is None else tuple(rows.tolist()))
    assert drawn[0] == drawn[1] != drawn[2] == drawn[3]


def test_bf16_compute_keeps_fp32_masters(target: Target, item: FeatureBatch) -> None:
    config = tiny_config("train.dtype=bfloat16", "deterministic=false")
    state = new_state(target, config)
    metrics = train_step(state, item, target, config, progress=0.5)
    assert not metrics.skipped
    assert {p.dtype for p in state.drafter.parameters()} == {torch.float32}


@given(st.floats(-0.5, 1.5), st.floats(0, 0.9), st.floats(0, 1))
def test_the_learning_rate_stays_between_zero_and_its_peak(progress: float, warmup: float, min_lr: float) -> None:
    assert 0 <= lr_factor(progress, warmup=warmup, min_lr=min_lr) <= 1


def test_the_learning_rate_warms_up_then_follows_a_cosine_to_its_floor() -> None:
    settings = {"warmup": 0.1, "min_lr": 0.1}
    assert lr_factor(0.0, **settings) == pytest.approx(0.01)
    assert lr_factor(0.05, **settings) == pytest.approx(0.5)
    assert lr_factor(0.1, **settings) == pytest.approx(1.0)
    assert lr_factor(0.55, **settings) == pytest.approx(0.55)  # half way of the cosine
    assert lr_factor(1.0, **settings) == pytest.approx(0.1)
    assert lr_factor(0.0, warmup=0.0, min_lr=0.1) == pytest.approx(1.0)


def test_muon_gets_the_matrices_and_adamw_the_rest(trained: Drafter) -> None:
    muon, adamw = make_optimizers(trained, tiny_config("train.optimizer=muon").train)
    matrices, rest = (
        {id(p) for group in optimizer.param_groups for p in group["params"]} for optimizer in (muon, adamw)
    )
    assert matrices == {id(p) for p in trained.parameters() if p.dim() == 2}
    assert rest == {id(p) for p in trained.parameters() if p.dim() == 1}


def test_pass_last_tap_starts_with_the_last_tap_in_the_context(target: Target) -> None:
    drafter = new_drafter(target)
    drafter.init_weights(torch.Generator().manual_seed(0), pass_last_tap=True)
    hidden = target.features(random_text(0, 1, 20))
    last = hidden[..., -target.hidden_size :]
    similarity = torch.nn.functional.cosine_similarity(drafter.fc(hidden), last, dim=-1)
    assert similarity.min() > 0.95


def test_initial_weights_depend_on_the_generator_alone(target: Target) -> None:
    hashes = []
    for noise in (1, 2):
        torch.manual_seed(noise)
        hashes.append(params_sha256(new_drafter(target, seed=5)))
    assert hashes[0] == hashes[1] != params_sha256(new_drafter(target, seed=6))


def test_accumulated_batches_give_the_step_of_one_batch_whatever_they_weigh(target: Target) -> None:
    """Rows with many and with few supervised tokens weigh by tokens, not by batch."""
    rows, prompts = [random_text(seed, 30).tolist() for seed in range(4)], [5, 5, 5, 26]
    drafters = []
    for num_parts in (1, 2):
        drafter = new_drafter(target)
        config = tiny_config(f"train.grad_accum={num_parts}", "drafter.num_anchors=100", "train.clip_norm=1e9")
        state = TrainState.create(drafter, config)
        state.optimizers = [torch.optim.SGD([{"params": list(drafter.parameters()), "lr": 1.0, "peak_lr": 1.0}])]
        width = 4 // num_parts
        for start in range(0, 4, width):
            part = slice(start, start + width)
            item = feature_batch(target, rows[part], prompts[part])
            train_step(state, item, target, config, progress=0.5)
        assert (state.step, state.pending.num_batches) == (1, 0)
        drafters.append(drafter)
    for whole, parts in zip(*(drafter.parameters() for drafter in drafters), strict=True):
        torch.testing.assert_close(whole, parts, **ACCUMULATED)


def test_what_the_last_batches_leave_pending_is_applied(target: Target, item: FeatureBatch) -> None:
    config = tiny_config("train.grad_accum=3")
    drafter = new_drafter(target)
    state = TrainState.create(drafter, config)
    train_step(state, item, target, config, progress=0.5)
    before = params_sha256(drafter)
    finish_step(state, config)
    assert params_sha256(drafter) != before
    assert (state.step, state.pending.num_batches) == (1, 0)
    after = params_sha256(drafter)
    finish_step(state, config)
    assert (state.step, params_sha256(drafter)) == (1, after)
