"""Conversations in, tokens and a loss mask that can be trusted out; kept in a memory-mapped store."""

from draftsmith.data.collate import collate
from draftsmith.data.prepare import prepare
from draftsmith.data.readers import read_conversations
from draftsmith.data.regenerate import Regenerated, regenerate
from draftsmith.data.store import TokenStore
from draftsmith.data.template import template_sha256, tokenizer_sha256

__all__ = [
    "Regenerated",
    "TokenStore",
    "collate",
    "prepare",
    "read_conversations",
    "regenerate",
    "template_sha256",
    "tokenizer_sha256",
]
