"""The frozen language model: loading, hidden states of chosen layers, decoding with a cache.

Layers are named by the 0-based index of the decoder block whose output is meant, before any final norm.
"""

from draftsmith.target.allocator import keep_freed_memory
from draftsmith.target.builtin import builtin_gguf, cache_root, hub_name
from draftsmith.target.cache import PositionCache
from draftsmith.target.feature_cache import FeatureCache, capture
from draftsmith.target.generate import check_room, generate, prefill
from draftsmith.target.mask_token import resolve_mask_token_id
from draftsmith.target.model import (
    DTYPES,
    Target,
    default_layer_ids,
    load_target,
    load_tokenizer,
    resolve_device,
    resolve_target,
)
from draftsmith.target.remote import RemoteWorker, serve_target
from draftsmith.target.sampling import GREEDY, Sampling, choose, draw, most_likely, probabilities, streams
from draftsmith.target.worker import (
    CacheReader,
    ComputingWorker,
    FeatureWorker,
    Handed,
    RecordingWorker,
    attempts_at,
    feature_bytes,
    samples_of,
)

__all__ = [
    "DTYPES",
    "GREEDY",
    "CacheReader",
    "ComputingWorker",
    "FeatureCache",
    "FeatureWorker",
    "Handed",
    "PositionCache",
    "RecordingWorker",
    "RemoteWorker",
    "Sampling",
    "Target",
    "attempts_at",
    "builtin_gguf",
    "cache_root",
    "capture",
    "check_room",
    "choose",
    "default_layer_ids",
    "draw",
    "feature_bytes",
    "generate",
    "hub_name",
    "keep_freed_memory",
    "load_target",
    "load_tokenizer",
    "most_likely",
    "prefill",
    "probabilities",
    "resolve_device",
    "resolve_mask_token_id",
    "resolve_target",
    "samples_of",
    "serve_target",
    "streams",
]
