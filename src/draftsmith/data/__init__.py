"""Conversations in, tokens and a loss mask that can be trusted out; kept in a memory-mapped store."""

from draftsmith.data.accounting import Accounting
from draftsmith.data.collate import collate
from draftsmith.data.prepare import prepare
from draftsmith.data.readers import read_conversations
from draftsmith.data.regenerate import Regenerated, regenerate
from draftsmith.data.rejection import Rejection
from draftsmith.data.source import Source, parse_source
from draftsmith.data.store import TokenStore
from draftsmith.data.template import template_sha256, tokenizer_sha256

__all__ = [
    "Accounting",
    "Regenerated",
    "Rejection",
    "Source",
    "TokenStore",
    "collate",
    "parse_source",
    "prepare",
    "read_conversations",
    "regenerate",
    "template_sha256",
    "tokenizer_sha256",
]
