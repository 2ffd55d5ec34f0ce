"""Proper edge colouring of a bipartite multigraph with as many colours as its largest degree (König 1916).

Left vertices are steps, each with W batches; right vertices are blocks of W consecutive batches of one bucket; an edge
is a batch, its colour the rank. A proper colouring gives every rank one batch of every step and at most one of every
block, hence floor or ceiling of its share at all times. Edges are inserted one by one; when a step and a block have no
free colour in common, an alternating path of two colours is swapped. Such a path never returns to the step.
"""

from __future__ import annotations

_NONE = -1


def color_edges(buckets: list[int], num_colors: int) -> list[int]:
    """Rank of every batch; len(buckets) is a multiple of num_colors. Prefers a rank whose last bucket was another."""
    blocks, num_blocks = _blocks(buckets, num_colors)
    at_step = [_NONE] * len(buckets)  # edge of a step and colour: [step * W + colour]
    at_block = [_NONE] * (num_blocks * num_colors)
    colors = [_NONE] * len(buckets)
    for edge, bucket in enumerate(buckets):
        step_base = edge - edge % num_colors
        block_base = blocks[edge] * num_colors
        # Start where the block ended last: otherwise low ranks always choose first.
        color = _common_color(bucket, edge, step_base, block_base, buckets, at_step, at_block, num_colors)
        if color == _NONE:
            color = at_step.index(_NONE, step_base)
            color -= step_base
            other = at_block.index(_NONE, block_base) - block_base
            _swap_path(edge, color, other, blocks, at_step, at_block, colors, num_colors)
        colors[edge] = color
        at_step[step_base + color] = edge
        at_block[block_base + color] = edge
    return colors


def _blocks(buckets: list[int], size: int) -> tuple[list[int], int]:
    """Block of every batch: the first `size` batches of a bucket are its first block, and so on."""
    seen: dict[int, int] = {}
    current: dict[int, int] = {}
    blocks, num_blocks = [], 0
    for bucket in buckets:
        count = seen.get(bucket, 0)
        if count % size == 0:
            current[bucket] = num_blocks
            num_blocks += 1
        seen[bucket] = count + 1
        blocks.append(current[bucket])
    return blocks, num_blocks


def _common_color(
    bucket: int,
    edge: int,
    step_base: int,
    block_base: int,
    buckets: list[int],
    at_step: list[int],
    at_block: list[int],
    num_colors: int,
) -> int:
    fallback = _NONE
    previous = step_base - num_colors
    for turn in range(num_colors):
        color = (edge * 7 + turn) % num_colors
        if at_step[step_base + color] == _NONE and at_block[block_base + color] == _NONE:
            if previous < 0 or buckets[at_step[previous + color]] != bucket:
                return color
            if fallback == _NONE:
                fallback = color
    return fallback


def _swap_path(
    edge: int,
    color: int,
    other: int,
    blocks: list[int],
    at_step: list[int],
    at_block: list[int],
    colors: list[int],
    num_colors: int,
) -> None:
    """Free `color` at the edge's block: swap it with `other` along the path that starts there."""
    path, block = [], blocks[edge]
    while True:
        taken = at_block[block * num_colors + color]
        if taken == _NONE:
            break
        path.append(taken)
        step_base = taken - taken % num_colors
        taken = at_step[step_base + other]
        if taken == _NONE:
            break
        path.append(taken)
        block = blocks[taken]
    for part in path:
        at_step[part - part % num_colors + colors[part]] = _NONE
        at_block[blocks[part] * num_colors + colors[part]] = _NONE
    for part in path:
        colors[part] = other if colors[part] == color else color
        at_step[part - part % num_colors + colors[part]] = part
        at_block[blocks[part] * num_colors + colors[part]] = part
