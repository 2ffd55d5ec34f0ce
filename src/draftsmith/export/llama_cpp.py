"""A drafter as GGUF for llama.cpp: architecture `dflash`, the target's tokenizer, ids of tapped layers + 1.

Names come from the `gguf` package's own map. Its releases do not know the architecture yet, but a drafter's layers are
those of Qwen3 and the two tensors besides are named as llama.cpp's loader asks for them
(https://github.com/ggml-org/llama.cpp/blob/master/src/models/dflash.cpp). Embedding and head stay the target's.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import torch

from draftsmith.drafter import Drafter, DrafterShape
from draftsmith.errors import ExportError, ModelError
from draftsmith.export.directory import refuse_existing
from draftsmith.export.gguf_reader import GgufReader
from draftsmith.export.gguf_tokenizer import PREFIX, GgufTokenizer
from draftsmith.export.tensors import check_tensors, drafter_of, expected_tensors, published_tensors
from draftsmith.files import atomic_directory

ARCHITECTURE = "dflash"
GGUF_TYPES = {
    "f32": gguf.GGMLQuantizationType.F32,
    "f16": gguf.GGMLQuantizationType.F16,
    "bf16": gguf.GGMLQuantizationType.BF16,
    "q8_0": gguf.GGMLQuantizationType.Q8_0,
}
FILE_TYPES = {
    "f32": gguf.LlamaFileType.ALL_F32,
    "f16": gguf.LlamaFileType.MOSTLY_F16,
    "bf16": gguf.LlamaFileType.MOSTLY_BF16,
    "q8_0": gguf.LlamaFileType.MOSTLY_Q8_0,
}
Q8_BLOCK = 32


def gguf_file(directory: Path) -> Path | None:
    """The drafter's file in an exported directory."""
    return next(iter(sorted(directory.glob("*.gguf"))), None)


def export_gguf(
    drafter: Drafter, destination: Path, *, card: str, tokenizer: GgufTokenizer, dtype: str = "bf16"
) -> Path:
    """Write drafter-<dtype>.gguf and the card, read back and compare; ExportError leaves nothing half-written.

    Matrices are stored as `dtype` (f32, f16, bf16, q8_0), norms always as f32.
    """
    tensors = published_tensors(drafter, torch.float32)
    if dtype not in GGUF_TYPES:
        raise ExportError(f"dtype is {dtype!r}; a GGUF drafter can be written as {', '.join(GGUF_TYPES)}")
    narrow = [name for name, t in tensors.items() if t.dim() == 2 and t.shape[1] % Q8_BLOCK]
    if dtype == "q8_0" and narrow:
        raise ExportError(f"{narrow[0]} has rows that are no multiple of {Q8_BLOCK}, as q8_0 needs; use bf16")
    tokenizer.check_fits(drafter.shape)
    refuse_existing(destination)
    try:
        with atomic_directory(destination) as aside:
            path = aside / f"drafter-{dtype}.gguf"
            stored = {name: _stored(tensor, dtype) for name, tensor in tensors.items()}
            _write(path, drafter.shape, stored, tokenizer, dtype)
            (aside / "README.md").write_text(card, encoding="utf-8")
            _compare(path, drafter.shape, stored)
    except OSError as error:
        raise ExportError(f"the drafter cannot be written to {destination}: {error}") from error
    return destination


def read_gguf(path: Path) -> Drafter:
    """A drafter in fp32 from its GGUF. Raises ExportError for another architecture, other names or shapes."""
    shape, tensors = _read(path)
    return drafter_of(shape, tensors)


def tensor_names(shape: DrafterShape) -> dict[str, str]:
    """z-lab names -> names in the GGUF."""
    known = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN3, shape.num_hidden_layers)
    besides = {
        "fc.weight": "fc.weight",
        "hidden_norm.weight": gguf.TENSOR_NAMES[gguf.MODEL_TENSOR.ENC_OUTPUT_NORM] + ".weight",
    }
    names = {}
    for name in expected_tensors(shape):
        found = besides.get(name) or known.get_name(f"model.{name}", try_suffixes=(".weight",))
        if found is None:
            raise ExportError(f"the installed gguf package has no name for {name}; install gguf>=0.19")
        names[name] = found
    return names


def check_target_gguf(path: Path, shape: DrafterShape) -> None:
    """Raises ModelError naming both values if this target's GGUF is not the one that the drafter was made for."""
    try:
        fields = {name: f.contents() for name, f in GgufReader(path).fields.items() if ".ggml.m" not in name}
        kind = fields["general.architecture"]
        found = {
            "hidden size": (shape.hidden_size, fields[f"{kind}.embedding_length"]),
            "number of layers": (shape.num_target_layers, fields[f"{kind}.block_count"]),
            "vocabulary": (shape.vocab_size, len(fields[f"{PREFIX}tokens"])),
        }
    except (OSError, ValueError, KeyError, IndexError) as error:
        raise ExportError(f"{path} cannot be read as the GGUF of a target: {error}") from error
    for name, (ours, theirs) in found.items():
        if ours != theirs:
            raise ModelError(f"the drafter was made for a target with {name} {ours}, but {path} has {theirs}")


Stored = tuple[npt.NDArray[Any], "gguf.GGMLQuantizationType"]


def _stored(tensor: torch.Tensor, dtype: str) -> Stored:
    kind = GGUF_TYPES[dtype] if tensor.dim() == 2 else gguf.GGMLQuantizationType.F32
    return gguf.quants.quantize(tensor.numpy(), kind), kind


def _write(path: Path, shape: DrafterShape, stored: Mapping[str, Stored], tokenizer: GgufTokenizer, dtype: str) -> None:
    writer = gguf.GGUFWriter(path, ARCHITECTURE)
    writer.add_type(gguf.GGUFType.MODEL)
    writer.add_file_type(FILE_TYPES[dtype])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    writer.add_context_length(shape.max_position_embeddings)
    writer.add_embedding_length(shape.hidden_size)
    writer.add_block_count(shape.num_hidden_layers)
    writer.add_feed_forward_length(shape.intermediate_size)
    writer.add_head_count(shape.num_attention_heads)
    writer.add_head_count_kv(shape.num_key_value_heads)
    writer.add_key_length(shape.head_dim)
    writer.add_value_length(shape.head_dim)
    writer.add_rope_dimension_count(shape.head_dim)
    writer.add_rope_freq_base(shape.rope_theta)
    writer.add_layer_norm_rms_eps(shape.rms_norm_eps)
    writer.add_vocab_size(shape.vocab_size)
    writer.add_uint32(f"{ARCHITECTURE}.block_size", shape.block_size)
    # llama.cpp reads the input of a layer where we name the output of the one before it.
    writer.add_array(f"{ARCHITECTURE}.target_layers", [i + 1 for i in shape.target_layer_ids])
    # Not read by llama.cpp: which target the drafter belongs to.
    writer.add_uint32("draftsmith.num_target_layers", shape.num_target_layers)
    for role, token_id in (("bos", shape.bos_token_id), ("eos", shape.eos_token_id)):
        if token_id is not None:
            writer.add_uint32(f"draftsmith.{role}_token_id", token_id)
    tokenizer.write(writer)
    writer.add_mask_token_id(shape.mask_token_id)
    names = tensor_names(shape)
    for name, (values, kind) in stored.items():
        writer.add_tensor(names[name], values, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _read(path: Path) -> tuple[DrafterShape, dict[str, torch.Tensor]]:
    try:
        reader = GgufReader(path)
        fields = {name: field.contents() for name, field in reader.fields.items() if "tokenizer.ggml.t" not in name}
        found = {t.name: torch.from_numpy(gguf.quants.dequantize(t.data, t.tensor_type).copy()) for t in reader.tensors}
    except (OSError, ValueError, KeyError, IndexError) as error:  # what the reader makes of a torn file
        raise ExportError(f"{path} cannot be read as a GGUF file: {error}") from error
    if fields.get("general.architecture") != ARCHITECTURE:
        raise ExportError(f"{path} has architecture {fields.get('general.architecture')!r}, not {ARCHITECTURE!r}")
    shape = _shape_of(fields, path)
    names = {theirs: ours for ours, theirs in tensor_names(shape).items()}
    tensors = {names.get(name, name): tensor for name, tensor in found.items()}
    check_tensors(tensors, expected_tensors(shape), torch.float32)
    return shape, tensors


def _shape_of(fields: Mapping[str, Any], path: Path) -> DrafterShape:
    def own(name: str) -> Any:
        return fields[f"{ARCHITECTURE}.{name}"]

    try:
        return DrafterShape(
            num_hidden_layers=own("block_count"),
            hidden_size=own("embedding_length"),
            intermediate_size=own("feed_forward_length"),
            num_attention_heads=own("attention.head_count"),
            num_key_value_heads=own("attention.head_count_kv"),
            head_dim=own("attention.key_length"),
            rms_norm_eps=_decimal(own("attention.layer_norm_rms_epsilon")),
            rope_theta=_decimal(own("rope.freq_base")),
            max_position_embeddings=own("context_length"),
            vocab_size=own("vocab_size"),
            block_size=own("block_size"),
            mask_token_id=fields["tokenizer.ggml.mask_token_id"],
            target_layer_ids=tuple(i - 1 for i in own("target_layers")),
            num_target_layers=fields["draftsmith.num_target_layers"],
            bos_token_id=fields.get("draftsmith.bos_token_id"),
            eos_token_id=fields.get("draftsmith.eos_token_id"),
        )
    except KeyError as error:
        raise ExportError(f"{path} lacks {error}; it is not a drafter that draftsmith wrote") from None


def _decimal(value: float) -> float:
    """The shortest decimal of an fp32 number: 1e-06 is stored as 9.99999997e-07."""
    return float(str(np.float32(value)))


def _compare(path: Path, shape: DrafterShape, stored: Mapping[str, Stored]) -> None:
    written, tensors = _read(path)
    if written != shape:
        raise ExportError(f"{path.name} reads back as {written}, written was {shape}")
    for name, (values, kind) in stored.items():
        if not np.array_equal(tensors[name].numpy(), gguf.quants.dequantize(values, kind)):
            raise ExportError(f"{name} does not read back as it was written")
