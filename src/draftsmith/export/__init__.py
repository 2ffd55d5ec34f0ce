"""Published formats: written whole, with exact names and shapes, then read back and compared."""

from draftsmith.export.card import model_card, target_on_card
from draftsmith.export.directory import export_drafter
from draftsmith.export.formats import FORMATS, format_of, read_drafter
from draftsmith.export.layouts import EMBEDDING, HEAD, LAYOUTS, Verifier

__all__ = [
    "EMBEDDING",
    "FORMATS",
    "HEAD",
    "LAYOUTS",
    "Verifier",
    "export_drafter",
    "format_of",
    "model_card",
    "read_drafter",
    "target_on_card",
]
