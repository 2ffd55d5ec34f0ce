"""What a run must not change between its first step and its last: another value would train something else.

Where it computes, what it saves, measures and shows may change from one start to the next.
"""

from __future__ import annotations

from typing import Any

from draftsmith.config import RunConfig
from draftsmith.data import TokenStore
from draftsmith.drafter import Drafter
from draftsmith.target import Target

SECTIONS = ("target", "data", "batching", "drafter", "train")
# Names and places: what they stand for is compared by its content.
FREE = {
    "target.model",
    "target.revision",
    "target.trust_remote_code",
    "target.cache",
    "data.store",
    "data.conversations",
}


def settings_of(config: RunConfig) -> dict[str, Any]:
    """The settings that decide what is trained, by name."""
    whole = config.model_dump(mode="json")
    named = {f"{section}.{name}": value for section in SECTIONS for name, value in whole[section].items()}
    return {"seed": config.seed, **{name: value for name, value in named.items() if name not in FREE}}


def contract_of(config: RunConfig, store: TokenStore, target: Target, drafter: Drafter) -> dict[str, Any]:
    """The settings, and the content of what they name."""
    made_from = {f"the store's {name}": value for name, value in store.meta["made_from"].items()}
    return {
        **settings_of(config),
        **made_from,
        "the store": store.fingerprint,
        "the target": target.fingerprint(),
        "the tapped layers": list(target.layer_ids),
        "the mask token": drafter.shape.mask_token_id,
    }


def differences(was: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Every change in words, in order of names."""
    return [
        f"{name} was {was.get(name)!r} and is now {now.get(name)!r}"
        for name in sorted({*was, *now})
        if was.get(name) != now.get(name)
    ]
