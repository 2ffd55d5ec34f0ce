"""The DFlash drafter: its shape, its network, the blocks it is trained on, and who may see whom."""

from draftsmith.drafter.blocks import Blocks, draw_blocks, slot_weights
from draftsmith.drafter.mask import dense_mask, flex_mask, mask_builder
from draftsmith.drafter.model import Drafter
from draftsmith.drafter.shape import DrafterShape, make_shape

__all__ = [
    "Blocks",
    "Drafter",
    "DrafterShape",
    "dense_mask",
    "draw_blocks",
    "flex_mask",
    "make_shape",
    "mask_builder",
    "slot_weights",
]
