"""The frozen language model: loading, hidden states of chosen layers, decoding with a cache.

Layers are named by the 0-based index of the decoder block whose output is meant, before any final norm.
"""

from draftsmith.target.cache import PositionCache
from draftsmith.target.generate import generate
from draftsmith.target.mask_token import resolve_mask_token_id
from draftsmith.target.model import Target, default_layer_ids, load_target, load_tokenizer

__all__ = [
    "PositionCache",
    "Target",
    "default_layer_ids",
    "generate",
    "load_target",
    "load_tokenizer",
    "resolve_mask_token_id",
]
