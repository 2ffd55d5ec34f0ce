"""A Hugging Face causal language model as a target: frozen, tapped by hooks, usable with a position-addressed cache."""

from __future__ import annotations

import copy
import difflib
import hashlib
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer

from draftsmith.config import TargetConfig
from draftsmith.errors import ConfigError, ModelError, first_line
from draftsmith.observe import fast_dtype
from draftsmith.target.builtin import BUILTIN_TARGETS, materialise
from draftsmith.target.cache import PositionCache, visible
from draftsmith.target.hub import hub_is_reachable
from draftsmith.target.invariant import length_invariant
from draftsmith.target.paged import paged_zeros

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class _LastTapReached(Exception):  # noqa: N818 - a jump out of the forward, not an error
    """The last tapped layer has run; nothing after it is needed."""


class Target:
    """A frozen model with taps on the outputs of `layer_ids`.

    Rows are right-padded everywhere: with causal attention, padding after the last real token changes nothing before
    it, so no padding mask exists. Legend: B rows, S or Q tokens, K taps, H hidden size, V vocabulary.
    """

    def __init__(self, model: Any, *, layer_ids: Sequence[int] | None, num_taps: int, name: str) -> None:
        self.model = model.eval().requires_grad_(False)
        self.name = name
        self.decoder = model.get_decoder()
        text_config = self.decoder.config
        self.config = text_config
        self.hidden_size: int = text_config.hidden_size
        self.vocab_size: int = model.get_output_embeddings().weight.shape[0]
        self.num_layers: int = text_config.num_hidden_layers
        self.layer_ids = _checked_layer_ids(layer_ids, num_taps, self.num_layers)
        self._windows = _attention_windows(text_config)
        layers = _decoder_layers(self.decoder, self.num_layers)
        self._eager = text_config._attn_implementation == "eager"
        self._sink: torch.Tensor | None = None
        self._stop_after_last_tap = False
        self._taps = [
            layers[layer_id].register_forward_hook(self._tap(place)) for place, layer_id in enumerate(self.layer_ids)
        ]

    @property
    def feature_size(self) -> int:
        """K*H: width of the hidden states handed to the drafter."""
        return len(self.layer_ids) * self.hidden_size

    @property
    def dtype(self) -> torch.dtype:
        return self.embedding.weight.dtype

    @property
    def device(self) -> torch.device:
        return self.embedding.weight.device

    @property
    def embedding(self) -> nn.Embedding:
        """The input embedding module; scaling that a family applies inside it is part of it."""
        return self.model.get_input_embeddings()  # type: ignore[no-any-return]

    @property
    def head(self) -> nn.Linear:
        """The language-model head; with tied embeddings its weight is the embedding matrix."""
        return self.model.get_output_embeddings()  # type: ignore[no-any-return]

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """Ids that end an answer."""
        ids = self.model.generation_config.eos_token_id
        if ids is None:
            ids = self.config.eos_token_id
        return frozenset([ids] if isinstance(ids, int) else ids or [])

    @property
    def max_length(self) -> int:
        """Tokens of the longest text that the model was made for, prompt and answer together."""
        if not hasattr(self.config, "max_position_embeddings"):
            return sys.maxsize
        return int(self.config.max_position_embeddings or sys.maxsize)

    def fingerprint(self) -> str:
        """Names this model by a sample of every weight, wherever it was loaded from and whatever it is called."""
        digest = hashlib.sha256(self.config.to_json_string().encode())
        for name, weight in self.model.named_parameters():
            stride = max(1, weight.numel() // 4096)
            digest.update(name.encode())
            digest.update(weight.detach().flatten()[::stride].float().cpu().numpy().tobytes())
        return digest.hexdigest()

    @torch.no_grad()
    def features(self, input_ids_BS: torch.Tensor) -> torch.Tensor:
        """Hidden states [B, S, K*H] at the taps. Stops after the last tapped layer.

        On a processor those of a sample do not depend on its batch, see invariant.py.
        """
        sink = self._new_sink(input_ids_BS)
        with self._capture(sink, stop=True), length_invariant(self.device), suppress(_LastTapReached):
            self.decoder(input_ids=input_ids_BS, use_cache=False)
        return sink

    @torch.no_grad()
    def forward(
        self,
        input_ids_BQ: torch.Tensor,
        positions_BQ: torch.Tensor,
        cache: PositionCache,
        *,
        keep: torch.Tensor | None = None,
        capture: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Logits [B, Q, V] and, if `capture`, hidden states [B, Q, K*H] of tokens placed at `positions_BQ`.

        `keep` (int64 [U]) restricts the logits to these columns.
        """
        cache.place(positions_BQ)
        sink = self._new_sink(input_ids_BQ) if capture else None
        with self._capture(sink, stop=False):
            output = self.model(
                input_ids=input_ids_BQ,
                position_ids=positions_BQ,
                attention_mask=self._mask(positions_BQ, cache.length),
                cache=cache,
                use_cache=True,
                logits_to_keep=0 if keep is None else keep,
            )
        return output.logits, sink

    def twin(self) -> Target:
        """The same weights behind modules and taps of its own, so that another thread may use it meanwhile."""
        shared = {id(tensor): tensor for tensor in [*self.model.parameters(), *self.model.buffers()]}
        model = copy.deepcopy(self.model, shared)
        layers = _decoder_layers(model.get_decoder(), self.num_layers)
        for layer_id, tap in zip(self.layer_ids, self._taps, strict=True):
            layers[layer_id]._forward_hooks.pop(tap.id)
        return Target(model, layer_ids=self.layer_ids, num_taps=len(self.layer_ids), name=self.name)

    def _mask(self, positions_BQ: torch.Tensor, length: int) -> Any:
        masks = {kind: visible(positions_BQ, length, window) for kind, window in self._windows.items()}
        if self._eager:  # adds its mask to the scores, where SDPA takes booleans
            masks = {
                kind: torch.zeros_like(m, dtype=self.dtype).masked_fill_(~m, -torch.inf) for kind, m in masks.items()
            }
        return masks if len(masks) > 1 else next(iter(masks.values()))

    def _new_sink(self, input_ids: torch.Tensor) -> torch.Tensor:
        shape = (*input_ids.shape, self.feature_size)
        if self.device.type == "cpu":
            return paged_zeros(*shape, dtype=self.dtype)
        return torch.empty(shape, dtype=self.dtype, device=self.device)

    @contextmanager
    def _capture(self, sink: torch.Tensor | None, *, stop: bool) -> Iterator[None]:
        self._sink, self._stop_after_last_tap = sink, stop
        try:
            yield
        finally:
            self._sink, self._stop_after_last_tap = None, False

    def _tap(self, place: int) -> Any:
        columns = slice(place * self.hidden_size, (place + 1) * self.hidden_size)

        def hook(_module: nn.Module, _inputs: Any, output: Any) -> None:
            if self._sink is None:
                return
            self._sink[..., columns] = output[0] if isinstance(output, tuple) else output
            if self._stop_after_last_tap and place == len(self.layer_ids) - 1:
                raise _LastTapReached

        return hook


def load_target(config: TargetConfig, *, dtype: str | None = None, device: str = "cpu") -> Target:
    """Load and freeze the target. Raises ModelError if it is missing, or is no causal language model we can decode."""
    path = resolve_target(config.model)
    precision = dtype or config.dtype
    try:
        model = AutoModelForCausalLM.from_pretrained(
            path,
            local_files_only=_only_local(path),
            dtype=DTYPES[fast_dtype(device) if precision == "auto" else precision],
            revision=config.revision,
            trust_remote_code=config.trust_remote_code,
            # Not asked for: Transformers takes SDPA where a family has it, and eager attention where it has not.
        )
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        why = _explained(path, error)
        raise ModelError(f"target {config.model!r} cannot be loaded as a causal language model: {why}") from error
    return Target(model.to(device), layer_ids=config.layer_ids, num_taps=config.num_taps, name=config.model)


def load_tokenizer(config: TargetConfig) -> Any:
    """The target's tokenizer. Raises ModelError if it is missing or has no chat template."""
    path = resolve_target(config.model)
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            path,
            local_files_only=_only_local(path),
            revision=config.revision,
            trust_remote_code=config.trust_remote_code,
        )
    except (OSError, ValueError, KeyError) as error:
        why = _explained(path, error)
        raise ModelError(f"no tokenizer can be loaded for target {config.model!r}: {why}") from error
    if not tokenizer.chat_template:
        raise ModelError(
            f"the tokenizer of target {config.model!r} has no chat template, so conversations cannot be rendered; "
            "use an instruction-tuned model, or add chat_template.jinja to its directory"
        )
    return tokenizer


def resolve_device(name: str, *, setting: str = "device") -> str:
    """A device that works here; `device` may be auto: a GPU if there is one. Raises ConfigError naming the setting."""
    if (name, setting) == ("auto", "device"):
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        reason = first_line(error)
        way_out = "set device=auto" if setting == "device" else "list devices that are here, such as cpu"
        raise ConfigError(f"{setting} is {name!r}, which cannot be used here ({reason}); {way_out}") from None
    return name


def resolve_target(name: str) -> str:
    """A directory for a built-in name; anything else is a directory or hub name already."""
    if name in BUILTIN_TARGETS:
        return str(materialise(name))
    if Path(name).expanduser().is_dir():
        return str(Path(name).expanduser())
    if name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise ModelError(f"target directory {name} does not exist")
    if "/" not in name:
        near = difflib.get_close_matches(name, BUILTIN_TARGETS, n=1)
        hint = f"did you mean {near[0]}" if near else f"built in are {', '.join(BUILTIN_TARGETS)}"
        raise ModelError(f"target {name!r} does not exist; {hint}? Else give a directory, or a hub name as ORG/NAME")
    return name


def _only_local(path: str) -> bool:
    """Without a network, what is not here already is missed at once instead of after many attempts."""
    return not Path(path).is_dir() and not hub_is_reachable()


def _explained(path: str, error: Exception) -> str:
    if _only_local(path):
        return f"{path} is neither a directory nor in the local cache, and the hub cannot be reached; check the name"
    if not Path(path).is_dir():
        return first_line(error)
    return str(error) if (Path(path) / "config.json").exists() else f"{path} holds no config.json, so it is no model"


def default_layer_ids(num_layers: int, num_taps: int) -> tuple[int, ...]:
    """Evenly spaced taps from 1 to L-3, rounded half to even; one tap is the middle layer (the field's common rule)."""
    if num_taps == 1:
        return (num_layers // 2,)
    step = (num_layers - 4) / (num_taps - 1)
    return tuple(round(1 + place * step) for place in range(num_taps))


def _decoder_layers(decoder: nn.Module, num_layers: int) -> nn.ModuleList:
    """The list of decoder blocks, found by its length: families give it different names."""
    for child in decoder.children():
        if isinstance(child, nn.ModuleList) and len(child) == num_layers:
            return child
    raise ModelError(
        f"{type(decoder).__name__} has no list of {num_layers} decoder blocks to tap; its family is unknown"
    )


def _checked_layer_ids(layer_ids: Sequence[int] | None, num_taps: int, num_layers: int) -> tuple[int, ...]:
    ids = tuple(layer_ids) if layer_ids is not None else default_layer_ids(num_layers, num_taps)
    # The last block is excluded: elsewhere its output is read after the final norm, here before it.
    if not ids or any(not 0 <= i < num_layers - 1 for i in ids) or list(ids) != sorted(set(ids)):
        raise ConfigError(
            f"target.layer_ids is {list(ids)}: tapped layers must be distinct, ascending and between 0 and "
            f"{num_layers - 2} for a target of {num_layers} layers; set target.layer_ids, or lower target.num_taps"
        )
    return ids


def _attention_windows(config: Any) -> dict[str, int | None]:
    """Kind of attention layer -> window in tokens (None: unbounded). Refuses layers whose state cannot be rewound."""
    kinds = set(config.layer_types) if hasattr(config, "layer_types") and config.layer_types else set()
    unknown = kinds - {"full_attention", "sliding_attention"}
    if unknown:
        raise ModelError(
            f"the target has {', '.join(sorted(unknown))} layers; rejected draft tokens cannot be taken back out of "
            "their state, so lossless decoding is not possible here; use a target with attention layers only"
        )
    window = config.sliding_window if hasattr(config, "sliding_window") else None
    if not kinds:
        kinds = {"sliding_attention" if window else "full_attention"}
    return {kind: window if kind == "sliding_attention" else None for kind in sorted(kinds)}
