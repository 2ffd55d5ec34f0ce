"""The tiny target as a GGUF in fp32, so that llama.cpp computes what we compute."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import torch

from draftsmith.export.gguf_tokenizer import tokenizer_as_gguf
from draftsmith.target import Target


def write_target(target: Target, tokenizer: Any, path: Path, *, rename: dict[int, str] | None = None) -> Path:
    """`rename`: tokens that are to have another text than the tokenizer's."""
    config = target.config
    fields = tokenizer_as_gguf(tokenizer, target.name, vocab_size=target.vocab_size)
    for token_id, text in (rename or {}).items():
        fields.fields["tokenizer.ggml.tokens"][0][token_id] = text
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_vocab_size(target.vocab_size)
    fields.write(writer)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    for name, tensor in target.model.state_dict().items():
        if name == "lm_head.weight":  # tied
            continue
        if "q_proj" in name or "k_proj" in name:
            heads = config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
            tensor = interleaved(tensor, heads)
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight",)), tensor.float().contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def interleaved(weight: torch.Tensor, num_heads: int) -> torch.Tensor:
    """Rows in the order of llama.cpp's Llama, which turns neighbours where Transformers turns halves."""
    return weight.unflatten(0, (num_heads, 2, -1)).transpose(1, 2).flatten(0, 2)
