"""The frozen language model: loading, hidden states of chosen layers, decoding with a cache.

Layers are named by the 0-based index of the decoder block whose output is meant, before any final norm.
"""

from draftsmith.target.builtin import builtin_gguf, cache_root
from draftsmith.target.cache import PositionCache
from draftsmith.target.feature_cache import FeatureCache, capture
from draftsmith.target.generate import generate, prefill
from draftsmith.target.mask_token import resolve_mask_token_id
from draftsmith.target.model import (
    Target,
    default_layer_ids,
    load_target,
    load_tokenizer,
    resolve_device,
    resolve_target,
)
from draftsmith.target.worker import (
    CacheReader,
    FeatureWorker,
    Handed,
    RecordingWorker,
    attempts_at,
    feature_bytes,
    samples_of,
)

__all__ = [
    "CacheReader",
    "FeatureCache",
    "FeatureWorker",
    "Handed",
    "PositionCache",
    "RecordingWorker",
    "Target",
    "attempts_at",
    "builtin_gguf",
    "cache_root",
    "capture",
    "default_layer_ids",
    "feature_bytes",
    "generate",
    "load_target",
    "load_tokenizer",
    "prefill",
    "resolve_device",
    "resolve_mask_token_id",
    "resolve_target",
    "samples_of",
]
