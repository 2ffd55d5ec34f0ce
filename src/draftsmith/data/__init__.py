"""Conversations in, tokens and a loss mask that can be trusted out; kept in a memory-mapped store."""

from draftsmith.data.accounting import Accounting
from draftsmith.data.chat_server import AnswerSettings, ChatServer, ServerSettings, through_server
from draftsmith.data.collate import collate
from draftsmith.data.inspect import Inspection, check_store, inspect_store, tokenizer_problem
from draftsmith.data.inspect_page import inspection_page
from draftsmith.data.inspect_text import print_inspection
from draftsmith.data.prepare import prepare
from draftsmith.data.readers import read_conversations
from draftsmith.data.regenerate import AnswerAll, Regenerated, in_batches, regenerate
from draftsmith.data.rejection import Rejection
from draftsmith.data.source import Source, parse_source
from draftsmith.data.store import TokenStore
from draftsmith.data.template import ChatTemplate, template_sha256, tokenizer_sha256

__all__ = [
    "Accounting",
    "AnswerAll",
    "AnswerSettings",
    "ChatServer",
    "ChatTemplate",
    "Inspection",
    "Regenerated",
    "Rejection",
    "ServerSettings",
    "Source",
    "TokenStore",
    "check_store",
    "collate",
    "in_batches",
    "inspect_store",
    "inspection_page",
    "parse_source",
    "prepare",
    "print_inspection",
    "read_conversations",
    "regenerate",
    "template_sha256",
    "through_server",
    "tokenizer_problem",
    "tokenizer_sha256",
]
