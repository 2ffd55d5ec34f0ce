"""Which embedding row means "predict here".

The row must never mean anything else: not end, begin or padding, and nothing that the chat template writes. Rows
beyond the tokenizer's ids are best; where a model has none, a reserved special token serves.
"""

from __future__ import annotations

from typing import Any

from draftsmith.errors import ConfigError


def resolve_mask_token_id(
    tokenizer: Any, *, vocab_size: int, eos_token_ids: frozenset[int], requested: int | None = None
) -> int:
    """The requested id if it can serve, or one found by rule. Raises ConfigError that says why none can."""
    if requested is not None:
        problem = _problem(requested, tokenizer, vocab_size, eos_token_ids)
        if problem:
            raise ConfigError(f"drafter.mask_token_id is {requested}, {problem}; choose a reserved, unused token")
        return requested
    specials = [i for i, token in tokenizer.added_tokens_decoder.items() if token.special]
    for candidate in [len(tokenizer), *sorted(specials, reverse=True)]:
        if _problem(candidate, tokenizer, vocab_size, eos_token_ids) is None:
            return int(candidate)
    raise ConfigError(
        "no unused embedding row or reserved special token was found for the mask; set drafter.mask_token_id to the "
        "id of a token that neither the chat template nor the data contain"
    )


def _problem(token_id: int, tokenizer: Any, vocab_size: int, eos_token_ids: frozenset[int]) -> str | None:
    if not 0 <= token_id < vocab_size:
        return f"outside the target's vocabulary of {vocab_size}"
    roles = {"eos": tokenizer.eos_token_id, "bos": tokenizer.bos_token_id}
    roles |= {"pad": tokenizer.pad_token_id, "unk": tokenizer.unk_token_id}
    for role, role_id in roles.items():
        if token_id == role_id:
            return f"which is the {role} token"
    if token_id in eos_token_ids:
        return "which ends an answer of this target"
    if token_id in _template_ids(tokenizer):
        return f"which the chat template writes ({tokenizer.convert_ids_to_tokens(token_id)!r})"
    return None


def _template_ids(tokenizer: Any) -> set[int]:
    """Ids in a rendered exchange, and special tokens that occur anywhere in the template's text."""
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    ids = set(tokenizer.apply_chat_template(turns, return_dict=False))
    ids |= set(tokenizer.apply_chat_template(turns[:1], add_generation_prompt=True, return_dict=False))
    template = tokenizer.chat_template
    text = "".join(template.values()) if isinstance(template, dict) else template
    return ids | {i for i, token in tokenizer.added_tokens_decoder.items() if token.content in text}
