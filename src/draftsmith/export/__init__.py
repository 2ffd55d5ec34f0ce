"""Published formats: written whole, with exact names and shapes, then read back and compared."""

from draftsmith.export.card import model_card
from draftsmith.export.zlab import expected_tensors, export_drafter, read_drafter

__all__ = ["expected_tensors", "export_drafter", "model_card", "read_drafter"]
