"""What a plan is made from: settings, checked once, frozen."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from draftsmith.errors import PlanError

_CHOICES = {
    "batching": ("bucketed", "packed"),
    "edge_method": ("batches", "quantile", "geometric"),
    "shapes": ("static", "dynamic"),
    "overlong": ("truncate", "drop", "error"),
}


@dataclass(frozen=True, kw_only=True)
class PlanSettings:
    """How an epoch is cut into batches and ordered. Fields and defaults are those of the `batching` section.

    max_tokens: upper bound of rows x padded length of a batch, in tokens. max_rows: upper bound of rows, if any.
    num_buckets: how many length buckets, their edges chosen by edge_method; edges: explicit inclusive tops instead.
    shapes: "static" pads to the bucket's top, "dynamic" to the longest row. overlong: what becomes of samples that do
    not fit a batch of their own. order: name of a policy. pack_length: tokens of a packed row (max_tokens if None);
    pack_window: samples that are packed together; larger wastes less, smaller mixes better.
    Raises PlanError that names the setting, its value and the way out.
    """

    max_tokens: int = 8192
    max_rows: int | None = None
    num_buckets: int = 8
    edges: tuple[int, ...] | None = None
    edge_method: str = "batches"
    shapes: str = "dynamic"
    overlong: str = "truncate"
    order: str = "quota"
    batching: str = "bucketed"
    pack_length: int | None = None
    pack_window: int = 8192

    def __post_init__(self) -> None:
        for name, known in _CHOICES.items():
            if getattr(self, name) not in known:
                raise PlanError(f"batching.{name} is {getattr(self, name)!r}; choose one of {', '.join(known)}")
        for name in ("max_tokens", "max_rows", "num_buckets", "pack_length", "pack_window"):
            number = getattr(self, name)
            if number is not None and number < 1:
                raise PlanError(f"batching.{name} is {number}; it must be at least 1")
        if self.edges is not None:
            object.__setattr__(self, "edges", tuple(int(edge) for edge in self.edges))
            _check_edges(self.edges, self.max_tokens)
        if self.pack_length is not None and self.pack_length > self.max_tokens:
            raise PlanError(
                f"batching.pack_length is {self.pack_length}, longer than batching.max_tokens ({self.max_tokens}); "
                "a packed row must fit into a batch"
            )

    @property
    def row_limit(self) -> int:
        """Longest sample, in tokens, that fits a row."""
        if self.batching == "packed" and self.pack_length is not None:
            return self.pack_length
        return self.max_tokens

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}


def _check_edges(edges: tuple[int, ...] | None, max_tokens: int) -> None:
    if not edges:
        raise PlanError("batching.edges is empty; give at least one bucket top, or leave it out and set num_buckets")
    if edges[0] < 1:
        raise PlanError(f"batching.edges starts with {edges[0]}; bucket tops are lengths in tokens, at least 1")
    for low, high in pairwise(edges):
        if high <= low:
            raise PlanError(f"batching.edges must increase, but {high} follows {low}; sort them and drop repeats")
    if edges[-1] > max_tokens:
        raise PlanError(
            f"batching.edges ends with {edges[-1]}, more than batching.max_tokens ({max_tokens}): "
            "a row of that length fits no batch; raise max_tokens or lower the edge"
        )
