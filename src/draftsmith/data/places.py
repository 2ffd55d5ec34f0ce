"""Which token stands at which character: from the tokenizer's offsets, or, where tokens are bytes, from their lengths.

A byte-level tokenizer cuts a text into its bytes and nothing else, so the lengths of the tokens tell where each one
starts, and the tokenizer need not keep offsets, which takes a sixth of its time. Where the lengths do not add up to the
text (a normaliser changed it, a token strips blanks) the offsets are asked for.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt


class Places(Protocol):
    """Where the tokens of one text stand."""

    def first_from(self, char: int) -> int:
        """The first token that starts at `char` or after it; the number of tokens if there is none."""

    def first_touching(self, char: int) -> int:
        """The first token of which something stands at `char` or after it."""


class TokenPlaces:
    """From an encoding's offsets, asked for a few characters of a long text.

    A byte-level tokenizer that trims offsets gives a token of blanks the empty range where the *next* token starts;
    it really starts where the token before it stops.
    """

    def __init__(self, encoding: Any) -> None:
        self._encoding = encoding
        self._tokens = range(len(encoding))

    def first_from(self, char: int) -> int:
        near = self._encoding.char_to_token(char)  # right nearly always, and found without a search in Python
        if near is not None and self._start(near) == char and (not near or self._start(near - 1) < char):
            return int(near)
        return bisect_left(self._tokens, char, key=self._start)

    def first_touching(self, char: int) -> int:
        first = self.first_from(char)
        return first - 1 if first and self._encoding.token_to_chars(first - 1)[1] > char else first

    def _start(self, token: int) -> int:
        start, stop = self._encoding.token_to_chars(token)
        if start == stop and token:
            return min(start, self._encoding.token_to_chars(token - 1)[1])  # type: ignore[no-any-return]
        return start  # type: ignore[no-any-return]


class BytePlaces:
    """From the lengths of the tokens: `stops` int64 [T], the byte after each token."""

    def __init__(self, text: str, stops: npt.NDArray[np.int64]) -> None:
        self._text = text
        self._is_ascii = text.isascii()
        self._stops = stops

    def first_from(self, char: int) -> int:
        byte = self._byte(char)
        return 0 if byte == 0 else int(np.searchsorted(self._stops[:-1], byte)) + 1

    def first_touching(self, char: int) -> int:
        return int(np.searchsorted(self._stops, self._byte(char), side="right"))

    def _byte(self, char: int) -> int:
        return min(char, len(self._text)) if self._is_ascii else len(self._text[:char].encode())


class Tokens:
    """Texts in, token ids and places out, with a fast tokenizer's backend; no special tokens are added."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend
        self._lengths = _byte_lengths(backend)
        backend.no_truncation()  # some are saved with a limit
        backend.no_padding()

    def encode(self, texts: Sequence[str]) -> list[tuple[npt.NDArray[np.int32], Places]]:
        """int32 [T] and places of each text."""
        if self._lengths is None:
            encodings = self._backend.encode_batch(texts, add_special_tokens=False)
            return [(np.array(encoding.ids, dtype=np.int32), TokenPlaces(encoding)) for encoding in encodings]
        found: list[tuple[npt.NDArray[np.int32], Places]] = []
        for text, encoding in zip(texts, self._backend.encode_batch_fast(texts, add_special_tokens=False), strict=True):
            ids = np.array(encoding.ids, dtype=np.int32)
            stops = np.cumsum(self._lengths[ids])
            if len(ids) and stops[-1] == (len(text) if text.isascii() else len(text.encode())):
                found.append((ids, BytePlaces(text, stops)))
            else:
                found.append((ids, TokenPlaces(self._backend.encode(text, add_special_tokens=False))))
        return found


def within(places: Places, spans: Sequence[tuple[int, int]], first: int, stop: int) -> npt.NDArray[np.bool_]:
    """Bool [stop - first], true for those of the tokens first..stop-1 of which something stands in a span."""
    mask = np.zeros(stop - first, dtype=np.bool_)
    for start, end in spans:
        mask[max(0, places.first_touching(start) - first) : max(0, places.first_from(end) - first)] = True
    return mask


def _byte_lengths(backend: Any) -> npt.NDArray[np.int64] | None:
    """int64 [vocabulary], bytes of each token; None if tokens are not plainly bytes."""
    known = json.loads(backend.to_str())
    steps = known["pre_tokenizer"] or {}
    steps = [step for step in steps.get("pretokenizers", [steps]) if step.get("type") == "ByteLevel"]
    kept_as_it_is = known["normalizer"] is None or known["normalizer"]["type"] == "NFC"  # most texts are NFC already
    if known["model"]["type"] != "BPE" or not kept_as_it_is or not steps or steps[-1]["add_prefix_space"]:
        return None
    vocab = backend.get_vocab(with_added_tokens=True)
    lengths = np.zeros(max(vocab.values(), default=0) + 1, dtype=np.int64)
    lengths[list(vocab.values())] = [len(token) for token in vocab]  # its alphabet has a letter for each byte
    for token in known["added_tokens"]:
        lengths[token["id"]] = len(token["content"].encode())
    return lengths
