"""export(): a checkpoint in the formats that engines load."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from draftsmith.config import RunConfig, load_config
from draftsmith.drafter import Drafter, DrafterShape
from draftsmith.errors import ConfigError, ExportError
from draftsmith.evaluation import check_fit
from draftsmith.export import EMBEDDING, FORMATS, HEAD, LAYOUTS, Verifier, export_drafter, model_card
from draftsmith.run.directory import read_json
from draftsmith.target import Target, builtin_gguf, hub_name, load_target, load_tokenizer
from draftsmith.training import load_checkpoint, open_checkpoint, params_sha256, step_directory

# What summary.json says of a drafter's quality; it holds only for the very weights that were measured.
FIGURES = ("sets", "lossless", "num_lossless", "num_lossless_checked")


def export(
    run: Path, destination: Path, *, format: str = "hf", dtype: str | None = None, target_gguf: Path | None = None
) -> Path:
    """Export the newest checkpoint of a run, or the best with eval.export=best, to `destination`, which must not exist.

    dtype and target_gguf (where the tokenizer is taken from) belong to the format gguf alone.
    """
    if format not in FORMATS:
        raise ConfigError(f"--format is {format!r}; known are {', '.join(FORMATS)}")
    if format != "gguf" and (dtype or target_gguf):
        raise ConfigError("--dtype and --target-gguf belong to --format gguf; the other formats are always bf16")
    drafter, _, _ = load_checkpoint(run)
    config = load_config(run / "config.toml")
    summary = read_json(run / "summary.json")
    if config.eval.export == "best":
        drafter = open_checkpoint(step_directory(run, int(summary["exported_step"]))).drafter()
    if summary.get("params_sha256") != params_sha256(drafter):
        summary = {key: value for key, value in summary.items() if key not in FIGURES}
    card = card_of(drafter.shape, summary, config, format=format)
    if format == "gguf":
        return _export_gguf(drafter, destination, config, card, dtype or "bf16", target_gguf)
    if format == "speculators":
        return _export_speculators(drafter, destination, config, card)
    return export_drafter(drafter, destination, card=card, layout=LAYOUTS[format])


def card_of(shape: DrafterShape, summary: dict[str, Any], config: RunConfig, *, format: str = "hf") -> str:
    """The model card of a run's drafter: what was measured, and the settings that made it."""
    train, data = config.train, config.data
    origin = data.conversations or data.store or ", ".join(data.sources)
    settings = {
        "target revision": config.target.revision or "not pinned",
        "data": f"{origin}, at most {data.max_length} tokens a sample",
        "settings": f"{train.optimizer}, learning rate {train.base_lr}, loss {train.loss}, "
        f"{config.drafter.num_anchors} blocks a sample, hidden states in {config.target.dtype}",
    }
    return model_card(shape, summary, format=format, settings=settings)


def _export_speculators(drafter: Drafter, destination: Path, config: RunConfig, card: str) -> Path:
    target = load_target(config.target)
    check_fit(drafter, target)
    return export_with_target(
        drafter, destination, target, name=hub_name(config.target.model), format="speculators", card=card
    )


def export_with_target(
    drafter: Drafter, destination: Path, target: Target, *, name: str, format: str, card: str = ""
) -> Path:
    """Export with what a layout carries of the target: its `name`, embedding and head where they belong to it."""
    layout = LAYOUTS[format]
    return export_drafter(
        drafter,
        destination,
        card=card,
        layout=layout,
        verifier=Verifier(name, tuple(target.model.config.architectures or ())),
        target_tensors={EMBEDDING: target.embedding.weight, HEAD: target.head.weight}
        if layout.with_target_tensors
        else None,
    )


def _export_gguf(
    drafter: Drafter, destination: Path, config: RunConfig, card: str, dtype: str, target_gguf: Path | None
) -> Path:
    try:
        from draftsmith.export.gguf_tokenizer import tokenizer_as_gguf, tokenizer_of_gguf
        from draftsmith.export.llama_cpp import export_gguf
    except ImportError as error:
        raise ExportError("--format gguf needs the package gguf: pip install 'gguf>=0.19'") from error

    tokenizer = load_tokenizer(config.target)
    source = target_gguf or builtin_gguf(config.target.model)
    if source is None:
        fields = tokenizer_as_gguf(tokenizer, config.target.model, vocab_size=drafter.shape.vocab_size)
    else:
        fields = tokenizer_of_gguf(source)
        fields.check_same(tokenizer, config.target.model)
    return export_gguf(drafter, destination, card=card, tokenizer=fields, dtype=dtype)
