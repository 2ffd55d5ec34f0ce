"""Learning: the loss over drafted blocks, optimisers and their schedule, one step, checkpoints and when to save."""

from draftsmith.training.checkpoint import (
    Checkpoint,
    Snapshot,
    checkpoint_directories,
    examine,
    load_checkpoint,
    moments_sha256,
    newest_checkpoint,
    open_checkpoint,
    params_sha256,
    step_directory,
    step_of,
    take_snapshot,
    write_snapshot,
)
from draftsmith.training.guards import Guards
from draftsmith.training.head import TrainingHead, head_for_step
from draftsmith.training.loss import block_loss
from draftsmith.training.optimizer import lr_factor, make_optimizers
from draftsmith.training.saver import Saver, Schedule, best_steps
from draftsmith.training.step import StepMetrics, TrainState, add_batch, finish_step, take_step, train_step

__all__ = [
    "Checkpoint",
    "Guards",
    "Saver",
    "Schedule",
    "Snapshot",
    "StepMetrics",
    "TrainState",
    "TrainingHead",
    "add_batch",
    "best_steps",
    "block_loss",
    "checkpoint_directories",
    "examine",
    "finish_step",
    "head_for_step",
    "load_checkpoint",
    "lr_factor",
    "make_optimizers",
    "moments_sha256",
    "newest_checkpoint",
    "open_checkpoint",
    "params_sha256",
    "step_directory",
    "step_of",
    "take_snapshot",
    "take_step",
    "train_step",
    "write_snapshot",
]
