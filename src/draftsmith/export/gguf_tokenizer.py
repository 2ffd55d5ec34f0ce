"""The tokenizer inside a drafter's GGUF: taken from a GGUF of the target, or made from the target's own tokenizer.

llama.cpp tokenises with the target's file; the drafter's copy must only be the same vocabulary.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf

from draftsmith.drafter import DrafterShape
from draftsmith.errors import ExportError
from draftsmith.export.gguf_reader import GgufReader

PREFIX = "tokenizer.ggml."


@dataclass(frozen=True)
class GgufTokenizer:
    """The fields `tokenizer.ggml.*`: name -> (value, types)."""

    source: str
    fields: dict[str, tuple[Any, tuple[Any, ...]]]

    @property
    def tokens(self) -> list[str]:
        return list(self.fields[f"{PREFIX}tokens"][0])

    def check_fits(self, shape: DrafterShape) -> None:
        """Raises ExportError if the vocabulary is not the target's."""
        if len(self.tokens) != shape.vocab_size:
            raise ExportError(
                f"{self.source} has {len(self.tokens)} tokens, but the drafter's target has {shape.vocab_size}; "
                "use the target that it was trained on"
            )

    def check_same(self, tokenizer: Any, target: str) -> None:
        """Raises ExportError that names the first token in which a GGUF differs from the target's tokenizer."""
        theirs = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
        for token_id, (found, expected) in enumerate(zip(self.tokens, theirs, strict=False)):
            if expected is not None and found != expected:
                raise ExportError(
                    f"{self.source} has token {token_id} {found!r}, where the tokenizer of {target} has {expected!r}; "
                    "it is the GGUF of another model"
                )

    def write(self, writer: gguf.GGUFWriter) -> None:
        for name, (value, types) in self.fields.items():
            writer.add_key_value(name, value, types[0], sub_type=types[1] if len(types) > 1 else None)


def tokenizer_of_gguf(path: Path) -> GgufTokenizer:
    """The tokenizer of a target's GGUF. Raises ExportError if the file has none."""
    try:
        reader = GgufReader(path)
        fields = {
            name: (field.contents(), tuple(field.types[:2]))
            for name, field in reader.fields.items()
            if name.startswith(PREFIX)
        }
    except (OSError, ValueError, KeyError, IndexError) as error:
        raise ExportError(f"{path} cannot be read as a GGUF file: {error}") from error
    if f"{PREFIX}tokens" not in fields:
        raise ExportError(f"{path} carries no tokenizer; give the GGUF of the target itself")
    return GgufTokenizer(str(path), fields)


def tokenizer_as_gguf(tokenizer: Any, target: str, *, vocab_size: int) -> GgufTokenizer:
    """The target's tokenizer as GGUF fields, padded to the rows of its embedding. Byte-pair encodings only."""
    model = json.loads(tokenizer.backend_tokenizer.to_str())["model"]
    if model["type"] != "BPE":
        raise ExportError(
            f"the tokenizer of {target} is of type {model['type']}, which is not written here; "
            "give a GGUF of the target with --target-gguf"
        )
    texts = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
    tokens = [text if text is not None else f"[PAD{i}]" for i, text in enumerate(texts)]
    types = [gguf.TokenType.NORMAL if text is not None else gguf.TokenType.UNUSED for text in texts]
    for token_id, token in tokenizer.added_tokens_decoder.items():
        types[token_id] = gguf.TokenType.CONTROL if token.special else gguf.TokenType.USER_DEFINED
    for token_id in range(len(tokens), vocab_size):
        tokens.append(f"[PAD{token_id}]")
        types.append(gguf.TokenType.UNUSED)
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    if not merges:  # llama.cpp refuses a vocabulary without; this one never applies, as it never occurs in text
        special = next(iter(tokenizer.added_tokens_decoder.values())).content
        merges = [f"{special} {special}"]
    kind = gguf.GGUFValueType
    fields: dict[str, tuple[Any, tuple[Any, ...]]] = {
        f"{PREFIX}model": ("gpt2", (kind.STRING,)),
        f"{PREFIX}pre": ("default", (kind.STRING,)),
        f"{PREFIX}tokens": (tokens, (kind.ARRAY, kind.STRING)),
        f"{PREFIX}token_type": ([int(t) for t in types], (kind.ARRAY, kind.INT32)),
        f"{PREFIX}merges": (merges, (kind.ARRAY, kind.STRING)),
    }
    for role, token_id in (("bos", tokenizer.bos_token_id), ("eos", tokenizer.eos_token_id)):
        if token_id is not None:
            fields[f"{PREFIX}{role}_token_id"] = (token_id, (kind.UINT32,))
    return GgufTokenizer(f"the tokenizer of {target}", fields)
