"""A planned batch becomes tensors; padding is on the right and never attended to."""

from __future__ import annotations

from draftsmith.data.store import TokenStore
from draftsmith.errors import DataError
from draftsmith.records import Batch, BatchSpec

PAD_ID = 0  # never seen by anyone: attention_mask and loss_mask are false wherever it stands


def collate(store: TokenStore, spec: BatchSpec) -> Batch:
    """Rows `spec.samples` (indices into the store) as a batch [B, S], S = spec.padded_length; longer rows are cut.

    Raises DataError for an index that the store does not have.
    """
    import torch  # not above: whoever only tokenises, in many processes, does without

    shape = (len(spec.samples), spec.padded_length)
    input_ids = torch.full(shape, PAD_ID, dtype=torch.int64)
    attention_mask = torch.zeros(shape, dtype=torch.bool)
    loss_mask = torch.zeros(shape, dtype=torch.bool)
    for row, index in enumerate(spec.samples):
        if not 0 <= index < len(store):
            raise DataError(f"batch {spec.seq} asks for sample {index}, but the store has {len(store)}; plan it again")
        sample = store.sample(index)
        length = min(len(sample.input_ids), spec.padded_length)
        input_ids[row, :length] = torch.from_numpy(sample.input_ids[:length])
        attention_mask[row, :length] = True
        loss_mask[row, :length] = torch.from_numpy(sample.loss_mask[:length])
    return Batch(spec=spec, input_ids=input_ids, attention_mask=attention_mask, loss_mask=loss_mask)
