"""Learning: the loss over drafted blocks, optimisers and their schedule, one step, checkpoints."""

from draftsmith.training.checkpoint import load_checkpoint, params_sha256, save_checkpoint
from draftsmith.training.head import TrainingHead, head_for_step
from draftsmith.training.loss import block_loss
from draftsmith.training.optimizer import lr_factor, make_optimizers
from draftsmith.training.step import StepMetrics, TrainState, finish_step, train_step

__all__ = [
    "StepMetrics",
    "TrainState",
    "TrainingHead",
    "block_loss",
    "finish_step",
    "head_for_step",
    "load_checkpoint",
    "lr_factor",
    "make_optimizers",
    "params_sha256",
    "save_checkpoint",
    "train_step",
]
