"""One optimiser step, on one screen."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch

from draftsmith.config import RunConfig, TrainConfig
from draftsmith.drafter import Drafter, draw_blocks, mask_builder, slot_weights
from draftsmith.records import BatchSpec, FeatureBatch
from draftsmith.target import DTYPES, Target
from draftsmith.training.guards import Guards
from draftsmith.training.head import TrainingHead, head_for_step
from draftsmith.training.loss import LossParts, block_loss
from draftsmith.training.optimizer import lr_factor, make_optimizers, set_lr


@dataclass
class Pending:
    """Batches whose gradients are added up and not yet applied; epoch, seq: the batch after them.

    No checkpoint holds any: it stands between two steps.
    """

    num_batches: int = 0
    epoch: int = 0
    seq: int = 0
    numerator: float = 0.0
    weight: float = 0.0
    num_anchors: int = 0
    num_context_tokens: int = 0

    @property
    def loss(self) -> float:
        return self.numerator / max(self.weight, 1e-9)


@dataclass
class TrainState:
    """What a step reads and changes. Parameters are fp32 masters; compute precision is the step's business.

    epoch, seq: the batch that the next step begins with, seq being the number of batches of an epoch at its end. Counts
    and place are those of whole steps; `pending` has the rest. seconds: of training so far, for a budget of minutes.
    acceptance: as measured on held-out prompts, by step. is_torn: an update was begun and has not ended, so that the
    weights belong to no step.
    """

    drafter: Drafter
    optimizers: list[torch.optim.Optimizer]
    seen: npt.NDArray[np.int64] | None
    step: int = 0
    epoch: int = 0
    seq: int = 0
    num_anchors: int = 0
    num_context_tokens: int = 0
    seconds: float = 0.0
    acceptance: dict[int, float] = field(default_factory=dict)
    is_torn: bool = False
    guards: Guards = field(default_factory=Guards)
    pending: Pending = field(default_factory=Pending)
    head: tuple[int, TrainingHead] | None = field(default=None, repr=False)

    @staticmethod
    def create(drafter: Drafter, config: RunConfig, seen: npt.NDArray[np.int64] | None = None) -> TrainState:
        return TrainState(
            drafter, make_optimizers(drafter, config.train), seen if config.train.head == "sampled" else None
        )


@dataclass(frozen=True)
class StepMetrics:
    """What a step reports. accuracy_by_slot starts at slot 1; acceptance is teacher-forced, at the trained anchors."""

    step: int
    loss: float
    acceptance: float
    accuracy_by_slot: tuple[float, ...]
    grad_norm: float
    lr_factor: float
    num_blocks: int
    num_tokens: int
    skipped: bool
    spike: bool = False


def train_step(
    state: TrainState, item: FeatureBatch, target: Target, config: RunConfig, *, progress: float
) -> StepMetrics:
    """Draw blocks, forward, loss, backward; every `train.grad_accum` batches clip and update.

    Gradients of numerators are added up and divided by the summed denominators, so a token weighs the same in
    whichever batch it stands. `progress` in [0, 1] sets the learning rate. A step whose loss or gradient is not finite
    changes nothing but the count of skipped steps; with `train.skip_spikes` neither does one whose loss is a spike.
    """
    batch, drafter = item.batch, state.drafter
    blocks = draw_blocks(
        batch.input_ids,
        batch.loss_mask,
        block_size=drafter.shape.block_size,
        num_anchors=config.drafter.num_anchors,
        mask_token_id=drafter.shape.mask_token_id,
        seed=config.seed,
        epoch=batch.spec.epoch,
        samples=batch.spec.samples,
    )
    compute = DTYPES[config.train.dtype]
    with torch.autocast(batch.input_ids.device.type, dtype=compute, enabled=compute != torch.float32):
        mask = mask_builder(config.drafter.attention, batch.input_ids.device)(
            blocks.anchors_BN,
            blocks.keep_BN,
            num_context=batch.input_ids.shape[1],
            block_size=drafter.shape.block_size,
        )
        positions = torch.arange(batch.input_ids.shape[1], device=batch.input_ids.device)[None]
        context = drafter.context(item.target_hidden, positions)
        embedding = target.embedding(blocks.input_ids_BNK.flatten(1)).float()
        states = drafter(embedding, blocks.positions_BQ(), context, mask)
        parts = block_loss(
            states,
            blocks,
            _head(state, target, config, compute),
            weights_K=slot_weights(drafter.shape.block_size, config.train.gamma),
            kind=config.train.loss,
            chunk=config.train.head_chunk,
        )
    parts.numerator.backward()  # type: ignore[no-untyped-call]
    num_tokens = int(batch.attention_mask.sum())
    _add_to(state.pending, batch.spec, parts, num_anchors=blocks.num_blocks, num_tokens=num_tokens)
    factor = lr_factor(progress, warmup=config.train.warmup, min_lr=config.train.min_lr)
    applied = _Applied()
    if state.pending.num_batches == config.train.grad_accum:
        applied = _apply(state, config.train, factor)
    return StepMetrics(
        step=state.step,
        loss=float(parts.numerator.detach() / parts.denominator.clamp(min=1e-9)),
        acceptance=float(parts.accepted) / max(blocks.num_blocks, 1),
        accuracy_by_slot=tuple((parts.num_correct[1:] / parts.num_trained[1:].clamp(min=1)).tolist()),
        grad_norm=applied.grad_norm,
        lr_factor=factor,
        num_blocks=blocks.num_blocks,
        num_tokens=num_tokens,
        skipped=applied.skipped,
        spike=applied.spike,
    )


def finish_step(state: TrainState, config: RunConfig) -> None:
    """Apply what the last batches of training left pending, fewer than `train.grad_accum` of them; else nothing."""
    if state.pending.num_batches:
        _apply(state, config.train, lr_factor(1.0, warmup=config.train.warmup, min_lr=config.train.min_lr))


@dataclass(frozen=True)
class _Applied:
    """What became of the gradients of a step."""

    grad_norm: float = 0.0
    skipped: bool = False
    spike: bool = False


def _add_to(pending: Pending, spec: BatchSpec, parts: LossParts, *, num_anchors: int, num_tokens: int) -> None:
    pending.num_batches += 1
    pending.epoch, pending.seq = spec.epoch, spec.seq + 1
    pending.numerator += float(parts.numerator.detach())
    pending.weight += float(parts.denominator)
    pending.num_anchors += num_anchors
    pending.num_context_tokens += num_tokens


def _apply(state: TrainState, config: TrainConfig, factor: float) -> _Applied:
    """Clip and update with the gradients that were added up, unless the guards object."""
    for parameter in state.drafter.parameters():
        if parameter.grad is not None:
            parameter.grad /= max(state.pending.weight, 1e-9)
    grad_norm = float(torch.nn.utils.clip_grad_norm_(state.drafter.parameters(), config.clip_norm))
    finding = state.guards.judge(state.pending.loss, grad_norm)
    skipped = finding == "not finite" or (finding == "spike" and config.skip_spikes)
    state.is_torn = True
    if not skipped:
        set_lr(state.optimizers, factor)
        for optimizer in state.optimizers:
            optimizer.step()
    state.drafter.zero_grad(set_to_none=True)
    state.step += 1
    state.epoch, state.seq = state.pending.epoch, state.pending.seq
    state.num_anchors += state.pending.num_anchors
    state.num_context_tokens += state.pending.num_context_tokens
    state.pending = Pending()
    state.is_torn = False
    return _Applied(grad_norm, skipped, finding == "spike")


def _head(state: TrainState, target: Target, config: RunConfig, compute: torch.dtype) -> TrainingHead:
    draw = state.step // config.train.negatives_every if state.seen is not None else 0
    if state.head is None or state.head[0] != draw:
        head = target.head
        made = head_for_step(
            head.weight,
            head.bias,
            seen=state.seen,
            num_negatives=config.train.num_negatives,
            seed=config.seed,
            draw=draw,
        )
        bias = None if made.bias is None else made.bias.to(compute)
        state.head = draw, TrainingHead(made.weight.to(compute), bias, made.rows)
    return state.head[1]
