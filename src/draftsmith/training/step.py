"""One optimiser step, on one screen."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch

from draftsmith.config import RunConfig
from draftsmith.drafter import Drafter, draw_blocks, mask_builder, slot_weights
from draftsmith.records import FeatureBatch
from draftsmith.target import Target
from draftsmith.training.head import TrainingHead, head_for_step
from draftsmith.training.loss import LossParts, block_loss
from draftsmith.training.optimizer import lr_factor, make_optimizers, set_lr


@dataclass
class TrainState:
    """What a step reads and changes. Parameters are fp32 masters; compute precision is the step's business."""

    drafter: Drafter
    optimizers: list[torch.optim.Optimizer]
    seen: npt.NDArray[np.int64] | None
    step: int = 0
    num_anchors: int = 0
    num_context_tokens: int = 0
    num_skipped: int = 0
    num_pending: int = 0  # batches whose gradients are added up and not yet applied
    pending_weight: float = 0.0
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


def train_step(
    state: TrainState, item: FeatureBatch, target: Target, config: RunConfig, *, progress: float
) -> StepMetrics:
    """Draw blocks, forward, loss, backward; every `train.grad_accum` batches clip and update.

    Gradients of numerators are added up and divided by the summed denominators, so a token weighs the same in
    whichever batch it stands. `progress` in [0, 1] sets the learning rate. A step whose loss or gradient is not finite
    changes nothing but the count of skipped steps.
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
    compute = torch.bfloat16 if config.train.dtype == "bfloat16" else torch.float32
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
    state.num_pending += 1
    state.pending_weight += float(parts.denominator)
    factor = lr_factor(progress, warmup=config.train.warmup, min_lr=config.train.min_lr)
    grad_norm, skipped = 0.0, False
    if state.num_pending == config.train.grad_accum:
        grad_norm, skipped = _update(state, config.train.clip_norm, factor)
        state.step += 1
    state.num_anchors += blocks.num_blocks
    state.num_context_tokens += int(batch.attention_mask.sum())
    return _metrics(state, parts, blocks.num_blocks, grad_norm, factor, int(batch.attention_mask.sum()), skipped)


def finish_step(state: TrainState, config: RunConfig) -> None:
    """Apply what the last batches of training left pending, fewer than `train.grad_accum` of them; else nothing."""
    if state.num_pending:
        _update(state, config.train.clip_norm, lr_factor(1.0, warmup=config.train.warmup, min_lr=config.train.min_lr))
        state.step += 1


def _update(state: TrainState, clip_norm: float, factor: float) -> tuple[float, bool]:
    for parameter in state.drafter.parameters():
        if parameter.grad is not None:
            parameter.grad /= max(state.pending_weight, 1e-9)
    grad_norm = float(torch.nn.utils.clip_grad_norm_(state.drafter.parameters(), clip_norm))
    skipped = not np.isfinite(grad_norm)  # a loss that is not finite makes every gradient so
    if skipped:
        state.num_skipped += 1
    else:
        set_lr(state.optimizers, factor)
        for optimizer in state.optimizers:
            optimizer.step()
    state.drafter.zero_grad(set_to_none=True)
    state.num_pending, state.pending_weight = 0, 0.0
    return grad_norm, skipped


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


def _metrics(
    state: TrainState,
    parts: LossParts,
    num_blocks: int,
    grad_norm: float,
    factor: float,
    num_tokens: int,
    skipped: bool,
) -> StepMetrics:
    accuracy = (parts.num_correct[1:] / parts.num_trained[1:].clamp(min=1)).tolist()
    return StepMetrics(
        step=state.step,
        loss=float(parts.numerator.detach() / parts.denominator.clamp(min=1e-9)),
        acceptance=float(parts.accepted) / max(num_blocks, 1),
        accuracy_by_slot=tuple(accuracy),
        grad_norm=grad_norm,
        lr_factor=factor,
        num_blocks=num_blocks,
        num_tokens=num_tokens,
        skipped=skipped,
    )
