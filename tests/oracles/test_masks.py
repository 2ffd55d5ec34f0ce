"""Dense and flex masks against the rule of the paper written as loops."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention.flex_attention import create_mask

from draftsmith.drafter.mask import attend, dense_mask, flex_mask, mask_builder
from draftsmith.errors import ConfigError
from tolerances import SAME_NETWORK


def visible_by_rule(
    anchors: list[list[int]], keep: list[list[bool]], num_context: int, block_size: int
) -> list[list[list[bool]]]:
    """May query (block, slot) see key? Context strictly before the anchor, and its own block; one pair at a time."""
    rows = []
    for row_anchors, row_keep in zip(anchors, keep, strict=True):
        table = []
        for block, anchor in enumerate(row_anchors):
            for _slot in range(block_size):
                sees = [row_keep[block] and position < anchor for position in range(num_context)]
                for other in range(len(row_anchors)):
                    sees += [other == block] * block_size
                table.append(sees)
        rows.append(table)
    return rows


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[list[int]], list[list[bool]], int, int]:
    num_context, block_size = draw(st.integers(1, 20)), draw(st.integers(2, 5))
    rows, num_anchors = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    anchors = [[draw(st.integers(0, num_context - 1)) for _ in range(num_anchors)] for _ in range(rows)]
    keep = [[draw(st.booleans()) for _ in range(num_anchors)] for _ in range(rows)]
    return anchors, keep, num_context, block_size


@settings(max_examples=60, deadline=None)
@given(cases())
def test_the_dense_mask_is_the_rule_and_leaves_no_query_without_a_key(
    case: tuple[list[list[int]], list[list[bool]], int, int],
) -> None:
    anchors, keep, num_context, block_size = case
    mask = dense_mask(torch.tensor(anchors), torch.tensor(keep), num_context=num_context, block_size=block_size)
    assert mask[:, 0].tolist() == visible_by_rule(anchors, keep, num_context, block_size)
    assert mask.any(-1).all()


@settings(max_examples=25, deadline=None)
@given(cases())
def test_the_flex_mask_shows_what_the_dense_mask_shows(
    case: tuple[list[list[int]], list[list[bool]], int, int],
) -> None:
    anchors, keep, num_context, block_size = case
    arguments = torch.tensor(anchors), torch.tensor(keep)
    dense = dense_mask(*arguments, num_context=num_context, block_size=block_size)
    flex = flex_mask(*arguments, num_context=num_context, block_size=block_size)
    shown = create_mask(flex.mask_mod, len(anchors), 1, *dense.shape[-2:], device="cpu")
    assert torch.equal(shown, dense)


def test_the_flex_mask_is_shared_by_all_heads_and_skips_nothing_that_the_dense_mask_shows() -> None:
    anchors, keep = torch.tensor([[3, 200, 290], [130, 131, 0]]), torch.tensor([[True] * 3, [True, True, False]])
    settings_ = {"num_context": 300, "block_size": 64}
    flex, dense = flex_mask(anchors, keep, **settings_), dense_mask(anchors, keep, **settings_)
    assert flex.shape == dense.shape
    tiles = flex.to_dense()  # 1 where a tile of 128 x 128 is looked at
    for row, _, query, key in dense.nonzero().tolist():
        assert tiles[row, 0, query // 128, key // 128]


def test_attention_is_the_same_under_both_masks() -> None:
    anchors, keep = torch.tensor([[3, 9], [5, 0]]), torch.tensor([[True, True], [True, False]])
    generator = torch.Generator().manual_seed(0)
    queries = torch.randn(2, 2, 8, 16, generator=generator)
    keys, values = torch.randn(2, 2, 2, 20, 16, generator=generator)
    outputs = [
        attend(queries, keys, values, build(anchors, keep, num_context=12, block_size=4))
        for build in (dense_mask, flex_mask)
    ]
    torch.testing.assert_close(outputs[0], outputs[1], **SAME_NETWORK)


def test_flex_is_refused_where_it_cannot_train_and_chosen_where_it_can() -> None:
    with pytest.raises(ConfigError, match=r"drafter\.attention is flex"):
        mask_builder("flex", torch.device("cpu"))
    assert mask_builder("auto", torch.device("cpu")) is dense_mask
    assert mask_builder("auto", torch.device("cuda")) is flex_mask
