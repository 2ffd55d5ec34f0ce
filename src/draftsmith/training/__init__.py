"""Learning: the loss over drafted blocks, optimisers and their schedule, one step, checkpoints and when to save."""

from draftsmith.training.checkpoint import (
    Checkpoint,
    Snapshot,
    checkpoint_directories,
    examine,
    load_checkpoint,
    load_whole,
    moments_sha256,
    newest_checkpoint,
    open_checkpoint,
    params_sha256,
    step_directory,
    step_of,
    take_part,
    take_snapshot,
    whole_drafter,
    write_snapshot,
)
from draftsmith.training.guards import Guards
from draftsmith.training.head import TrainingHead, head_for_step
from draftsmith.training.loss import block_loss
from draftsmith.training.optimizer import lr_factor, make_optimizers
from draftsmith.training.saver import Bystander, Saver, Schedule, best_steps
from draftsmith.training.step import StepMetrics, TrainState, add_batch, add_nothing, finish_step, take_step, train_step

__all__ = [
    "Bystander",
    "Checkpoint",
    "Guards",
    "Saver",
    "Schedule",
    "Snapshot",
    "StepMetrics",
    "TrainState",
    "TrainingHead",
    "add_batch",
    "add_nothing",
    "best_steps",
    "block_loss",
    "checkpoint_directories",
    "examine",
    "finish_step",
    "head_for_step",
    "load_checkpoint",
    "load_whole",
    "lr_factor",
    "make_optimizers",
    "moments_sha256",
    "newest_checkpoint",
    "open_checkpoint",
    "params_sha256",
    "step_directory",
    "step_of",
    "take_part",
    "take_snapshot",
    "take_step",
    "train_step",
    "whole_drafter",
    "write_snapshot",
]
