"""One optimiser step, on one screen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch

from draftsmith.config import RunConfig, TrainConfig
from draftsmith.distributed import ALONE, Peers, is_sharded, part, shared_pass
from draftsmith.drafter import Drafter, draw_blocks, mask_builder, slot_weights
from draftsmith.records import BatchSpec, FeatureBatch
from draftsmith.target import DTYPES, Target
from draftsmith.training.figures import BatchFigures, of_all_ranks
from draftsmith.training.guards import Guards
from draftsmith.training.head import TrainingHead, head_for_step
from draftsmith.training.loss import block_loss
from draftsmith.training.optimizer import lr_factor, make_optimizers, set_lr


@dataclass
class Pending:
    """Batches whose gradients are added up and not yet applied; epoch, seq: the batch after them.

    num_batches counts those of all ranks; figures has this rank's own, by place in the step. No checkpoint holds any:
    it stands between two steps.
    """

    num_batches: int = 0
    epoch: int = 0
    seq: int = 0
    figures: dict[int, BatchFigures] = field(default_factory=dict, repr=False)

    def count(self, specs: Sequence[BatchSpec]) -> None:
        """These batches, the next ones of the plan, are added up, here or on other ranks."""
        self.num_batches += len(specs)
        self.epoch, self.seq = specs[-1].epoch, specs[-1].seq + 1


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
    """What a process without peers does with a batch; every `train.grad_accum` batches clip and update."""
    figures = add_batch(state, item, target, config)
    state.pending.count([item.batch.spec])
    if state.pending.num_batches == config.train.grad_accum:
        return take_step(state, config, progress=progress)[-1]
    return _metrics(figures, state.step, _factor(config.train, progress), _Applied())


def add_batch(
    state: TrainState, item: FeatureBatch, target: Target, config: RunConfig, *, ahead: int = 0
) -> BatchFigures:
    """Draw blocks, forward, loss, backward: gradients of numerators are added up.

    ahead: batches of the step, after those that are counted, that stand before this one.
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
        embedding = target.embedding(blocks.input_ids_BNK.flatten(1)).float()
        states = drafter.forward_with_context(item.target_hidden, positions, embedding, blocks.positions_BQ(), mask)
        parts = block_loss(
            states,
            blocks,
            _head(state, target, config, compute),
            weights_K=slot_weights(drafter.shape.block_size, config.train.gamma),
            kind=config.train.loss,
            chunk=config.train.head_chunk,
        )
    parts.numerator.backward()  # type: ignore[no-untyped-call]
    figures = BatchFigures.of(parts, num_blocks=blocks.num_blocks, num_tokens=int(batch.attention_mask.sum()))
    state.pending.figures[state.pending.num_batches + ahead] = figures
    return figures


def add_nothing(state: TrainState) -> None:
    """What a rank without a batch does while others have one: a pass over zeros, so that nobody waits for its part.

    Nothing at all where the drafter is whole on every rank.
    """
    if not is_sharded(state.drafter):
        return
    shape, device = state.drafter.shape, next(state.drafter.parameters()).device
    hidden_1CX = torch.zeros(1, 1, len(shape.target_layer_ids) * shape.hidden_size, device=device)
    noise_1QH = torch.zeros(1, 1, shape.hidden_size, device=device)
    place = torch.zeros(1, 1, dtype=torch.long, device=device)
    states = state.drafter.forward_with_context(hidden_1CX, place, noise_1QH, place, None)
    (0.0 * states.sum()).backward()  # type: ignore[no-untyped-call]


def take_step(state: TrainState, config: RunConfig, *, progress: float, peers: Peers = ALONE) -> list[StepMetrics]:
    """Clip and update with what all ranks have added up; returns the metrics of each batch, in the order of the plan.

    Gradients are divided by the summed denominators, so a token weighs the same in whichever batch and on whichever
    rank it stands. `progress` in [0, 1] sets the learning rate. A step whose loss or gradient is not finite changes
    nothing but the count of skipped steps; with `train.skip_spikes` neither does one whose loss is a spike. Every rank
    judges the same sums, so all of them skip or none.
    """
    figures = of_all_ranks(state.pending.figures, state.pending.num_batches, state.drafter.shape.block_size, peers)
    before, factor = state.step, _factor(config.train, progress)
    applied = _apply(state, config.train, factor, figures, peers)
    *others, last = figures
    return [
        *(_metrics(each, before, factor, _Applied()) for each in others),
        _metrics(last, state.step, factor, applied),
    ]


def finish_step(state: TrainState, config: RunConfig, peers: Peers = ALONE) -> list[StepMetrics]:
    """Apply what the last batches of training left pending, fewer than `train.grad_accum` of them; else nothing."""
    if not state.pending.num_batches:
        return []
    if is_sharded(state.drafter):  # no pass was the step's last one, so gradients have not been summed yet
        with shared_pass(state.drafter, last=True):
            add_nothing(state)
    return take_step(state, config, progress=1.0, peers=peers)


@dataclass(frozen=True)
class _Applied:
    """What became of the gradients of a step."""

    grad_norm: float = 0.0
    skipped: bool = False
    spike: bool = False


def _apply(
    state: TrainState, config: TrainConfig, factor: float, figures: Sequence[BatchFigures], peers: Peers
) -> _Applied:
    """Sum up gradients over all ranks, clip and update, unless the guards object."""
    numerator = weight = 0.0
    for each in figures:
        numerator, weight = numerator + each.numerator, weight + each.weight
    weight = max(weight, 1e-9)
    if not is_sharded(state.drafter):
        peers.sum_gradients(state.drafter.parameters())
    for parameter in state.drafter.parameters():
        if parameter.grad is not None:
            parameter.grad /= weight
    grad_norm = _clip(state.drafter, config.clip_norm, peers)
    finding = state.guards.judge(numerator / weight, grad_norm)
    skipped = finding == "not finite" or (finding == "spike" and config.skip_spikes)
    state.is_torn = True
    if not skipped:
        set_lr(state.optimizers, factor)
        for optimizer in state.optimizers:
            optimizer.step()
    state.drafter.zero_grad(set_to_none=True)
    state.step += 1
    state.epoch, state.seq = state.pending.epoch, state.pending.seq
    state.num_anchors += sum(each.num_blocks for each in figures)
    state.num_context_tokens += sum(each.num_tokens for each in figures)
    state.pending = Pending()
    state.is_torn = False
    return _Applied(grad_norm, skipped, finding == "spike")


def _clip(drafter: Drafter, clip_norm: float, peers: Peers) -> float:
    """Clip gradients to a norm; returns the one they had, the same bits on every rank."""
    parameters = [parameter for parameter in drafter.parameters() if parameter.grad is not None]
    norm = torch.nn.utils.get_total_norm([part(p.grad) for p in parameters if p.grad is not None])
    if is_sharded(drafter):
        norm = peers.sum(norm.double().cpu() ** 2).sqrt().to(norm)
    torch.nn.utils.clip_grads_with_norm_(parameters, clip_norm, norm)
    return float(norm)


def _metrics(figures: BatchFigures, step: int, factor: float, applied: _Applied) -> StepMetrics:
    return StepMetrics(
        step=step,
        loss=figures.loss,
        acceptance=figures.accepted / max(figures.num_blocks, 1),
        accuracy_by_slot=figures.accuracy_by_slot,
        grad_norm=applied.grad_norm,
        lr_factor=factor,
        num_blocks=figures.num_blocks,
        num_tokens=figures.num_tokens,
        skipped=applied.skipped,
        spike=applied.spike,
    )


def _factor(config: TrainConfig, progress: float) -> float:
    return lr_factor(progress, warmup=config.warmup, min_lr=config.min_lr)


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
