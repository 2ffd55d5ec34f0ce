"""What training works with, opened and checked before it begins."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from draftsmith.config import RunConfig
from draftsmith.data import TokenStore
from draftsmith.distributed import Peers
from draftsmith.run.opening import Plans, PromptSets
from draftsmith.streams import Topology, Workers
from draftsmith.target import FeatureCache, Target


@dataclass(frozen=True)
class Workplace:
    """All of it is as it was when the run began. contract: what must stay so, see contract.py.

    config: with the devices of this rank. prompts: none on ranks that do not measure.
    """

    run: Path
    config: RunConfig
    store: TokenStore
    plans: Plans
    target: Target = field(repr=False)
    cache: FeatureCache | None
    where: Topology
    workers: Workers = field(repr=False)
    prompts: PromptSets = field(repr=False)
    contract: dict[str, Any] = field(repr=False)
    peers: Peers
