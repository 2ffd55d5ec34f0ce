"""The formats beside the z-lab layout: what engines read is written down here by hand, and every mistake is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModel

from draftsmith.drafter import Drafter
from draftsmith.errors import ExportError, ModelError
from draftsmith.export import EMBEDDING, HEAD, LAYOUTS, Verifier, export_drafter, format_of, read_drafter
from draftsmith.export.gguf_tokenizer import GgufTokenizer, tokenizer_as_gguf, tokenizer_of_gguf
from draftsmith.export.llama_cpp import export_gguf, gguf_file, read_gguf
from draftsmith.target import Target
from helpers import draftsmith, new_drafter

LAYER = {
    "blk.{}.attn_norm.weight": [64],
    "blk.{}.attn_q.weight": [64, 64],
    "blk.{}.attn_k.weight": [32, 64],
    "blk.{}.attn_v.weight": [32, 64],
    "blk.{}.attn_output.weight": [64, 64],
    "blk.{}.attn_q_norm.weight": [16],
    "blk.{}.attn_k_norm.weight": [16],
    "blk.{}.ffn_norm.weight": [64],
    "blk.{}.ffn_gate.weight": [128, 64],
    "blk.{}.ffn_up.weight": [128, 64],
    "blk.{}.ffn_down.weight": [64, 128],
}
GGUF_TENSORS = {
    "fc.weight": [64, 5 * 64],
    "enc.output_norm.weight": [64],
    "output_norm.weight": [64],
    **{name.format(index): size for index in range(2) for name, size in LAYER.items()},
}


@pytest.fixture
def vocabulary(tokenizer: Any, target: Target) -> GgufTokenizer:
    return tokenizer_as_gguf(tokenizer, "tiny-random", vocab_size=target.vocab_size)


@pytest.fixture
def exported(trained: Drafter, target: Target, tmp_path: Path, vocabulary: GgufTokenizer) -> Callable[[str], Path]:
    def export(format: str) -> Path:
        destination = tmp_path / format
        if format == "gguf":
            return export_gguf(trained, destination, card="", tokenizer=vocabulary)
        weights = {EMBEDDING: target.embedding.weight, HEAD: target.head.weight}
        return export_drafter(
            trained,
            destination,
            card="",
            layout=LAYOUTS[format],
            verifier=Verifier("tiny-random", ("LlamaForCausalLM",)),
            target_tensors=weights if format == "speculators" else None,
        )

    return export


@pytest.mark.parametrize("format", ["hf", "speculators", "transformers", "gguf"])
def test_every_format_reads_back_with_the_same_bits_and_the_same_shape(
    format: str, exported: Callable[[str], Path], trained: Drafter
) -> None:
    directory = exported(format)
    back = read_drafter(directory)
    assert format_of(directory) == format
    assert back.shape == trained.shape
    for name, tensor in trained.state_dict().items():
        kept = tensor if format == "gguf" and tensor.dim() == 1 else tensor.to(torch.bfloat16)
        assert torch.equal(back.state_dict()[name].float(), kept.float()), name


def test_speculators_configuration_counts_layers_from_one_and_is_not_causal(exported: Callable[[str], Path]) -> None:
    config = json.loads((exported("speculators") / "config.json").read_text(encoding="utf-8"))
    network = config.pop("transformer_layer_config")
    assert config == {
        "architectures": ["DFlashSpeculator"],
        "speculators_model_type": "dflash",
        "dtype": "bfloat16",
        "block_size": 8,
        "draft_vocab_size": 100,
        "target_hidden_size": 64,
        "aux_hidden_state_layer_ids": [2, 3, 4, 5, 6],
        "mask_token_id": 3,
        "sliding_window_non_causal": True,
        "sample_from_anchor": False,
        "tie_word_embeddings": False,
        "speculators_config": {
            "algorithm": "dflash",
            "default_proposal_method": "greedy",
            "proposal_methods": [
                {
                    "proposal_type": "greedy",
                    "speculative_tokens": 7,
                    "verifier_accept_k": 1,
                    "accept_tolerance": 0.0,
                }
            ],
            "verifier": {"name_or_path": "tiny-random", "architectures": ["LlamaForCausalLM"]},
        },
    }
    assert network["model_type"] == "qwen3"
    assert (network["vocab_size"], network["num_hidden_layers"]) == (100, 2)
    assert network["layer_types"] == ["full_attention"] * 2
    assert "dflash_config" not in network


def test_speculators_carries_embedding_and_head_of_the_target(exported: Callable[[str], Path], target: Target) -> None:
    tensors = load_file(exported("speculators") / "model.safetensors")
    assert len(tensors) == 11 * 2 + 3 + 2
    assert torch.equal(tensors["embed_tokens.weight"], target.embedding.weight.bfloat16())
    assert torch.equal(tensors["lm_head.weight"], target.head.weight.bfloat16())


def test_transformers_loads_its_format_without_a_missing_or_unexpected_weight(
    exported: Callable[[str], Path], trained: Drafter
) -> None:
    directory = exported("transformers")
    assistant, report = AutoModel.from_pretrained(directory, dtype=torch.bfloat16, output_loading_info=True)
    assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert type(assistant).__name__ == "MuseGlimmerAssistantModel"
    assert assistant.config.layer_types == ["full_attention"] * 2
    assert assistant.config.target_layer_ids == [1, 2, 3, 4, 5]
    assert (assistant.config.block_size, assistant.config.mask_token_id) == (8, 3)
    assert assistant.config.rope_parameters["rope_theta"] == 10000.0
    assert torch.equal(assistant.encoder.fc.weight, trained.fc.weight.bfloat16())


def test_gguf_has_the_names_shapes_and_keys_that_llama_cpp_asks_for(exported: Callable[[str], Path]) -> None:
    path = gguf_file(exported("gguf"))
    assert path is not None
    assert path.name == "drafter-bf16.gguf"
    reader = gguf.GGUFReader(path)
    assert {t.name: [int(n) for n in reversed(t.shape)] for t in reader.tensors} == GGUF_TENSORS
    kinds = {t.tensor_type.name for t in reader.tensors if len(t.shape) == 1 or t.shape[1] == 1}
    assert kinds == {"F32"}
    assert {t.tensor_type.name for t in reader.tensors if t.name.endswith(("fc.weight", "attn_q.weight"))} == {"BF16"}
    fields = {name: field.contents() for name, field in reader.fields.items()}
    expected = {
        "general.architecture": "dflash",
        "dflash.block_count": 2,
        "dflash.context_length": 2048,
        "dflash.embedding_length": 64,
        "dflash.feed_forward_length": 128,
        "dflash.attention.head_count": 4,
        "dflash.attention.head_count_kv": 2,
        "dflash.attention.key_length": 16,
        "dflash.attention.value_length": 16,
        "dflash.rope.dimension_count": 16,
        "dflash.rope.freq_base": 10000.0,
        "dflash.block_size": 8,
        "dflash.target_layers": [2, 3, 4, 5, 6],
        "dflash.vocab_size": 100,
        "tokenizer.ggml.mask_token_id": 3,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.model": "gpt2",
    }
    assert {name: fields[name] for name in expected} == expected
    assert len(fields["tokenizer.ggml.tokens"]) == 100
    assert fields["tokenizer.ggml.tokens"][1:4] == ["<|im_start|>", "<|im_end|>", "<|reserved|>"]


@pytest.mark.parametrize(("dtype", "worst"), [("f32", 0.0), ("f16", 2**-11), ("bf16", 2**-8), ("q8_0", 1 / 127)])
def test_each_type_of_gguf_keeps_what_its_bits_allow(
    dtype: str, worst: float, trained: Drafter, vocabulary: GgufTokenizer, tmp_path: Path
) -> None:
    path = gguf_file(export_gguf(trained, tmp_path / dtype, card="", tokenizer=vocabulary, dtype=dtype))
    assert path is not None
    for name, tensor in read_gguf(path).state_dict().items():
        true = trained.state_dict()[name]
        rows = true.unflatten(-1, (-1, 32)).abs().amax(-1, keepdim=True) if dtype == "q8_0" and true.dim() == 2 else 0
        scale = rows.expand(*rows.shape[:-1], 32).flatten(-2) if isinstance(rows, torch.Tensor) else true.abs()
        assert bool(((tensor - true).abs() <= worst * scale + 1e-7).all()), name


def test_rows_that_do_not_divide_into_blocks_are_refused_for_q8_0(
    target: Target, vocabulary: GgufTokenizer, tmp_path: Path
) -> None:
    drafter = new_drafter(target, intermediate_size=100)
    with pytest.raises(ExportError, match=r"mlp\.down_proj\.weight has rows that are no multiple of 32"):
        export_gguf(drafter, tmp_path / "drafter", card="", tokenizer=vocabulary, dtype="q8_0")
    assert not list(tmp_path.iterdir())


def why_refused(read: Callable[[], object]) -> str | None:
    try:
        read()
    except ExportError as error:
        return str(error)
    return None


def mutated_gguf(path: Path, mutate: Callable[[dict[str, np.ndarray], dict[str, Any]], None]) -> Path:
    """A copy of a GGUF whose tensors or fields somebody got wrong."""
    reader = gguf.GGUFReader(path)
    tensors = {t.name: gguf.quants.dequantize(t.data, t.tensor_type) for t in reader.tensors}
    fields = {n: (f.contents(), f.types) for n, f in reader.fields.items() if not n.startswith("GGUF.")}
    mutate(tensors, fields)
    architecture = fields.pop("general.architecture")[0]
    writer = gguf.GGUFWriter(path.with_name("mutated.gguf"), architecture)
    for name, (value, types) in fields.items():
        writer.add_key_value(name, value, types[0], sub_type=types[1] if len(types) > 1 else None)
    for name, values in tensors.items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path.with_name("mutated.gguf")


def gguf_mutations() -> dict[str, Any]:
    made: dict[str, Any] = {}
    for name, size in GGUF_TENSORS.items():
        made[f"{name} missing"] = lambda t, f, n=name: t.pop(n)
        made[f"{name} short"] = lambda t, f, n=name: t.update({n: t[n][:-1].copy()})
        if len(size) == 2 and size[0] != size[1]:
            made[f"{name} transposed"] = lambda t, f, n=name: t.update({n: t[n].T.copy()})
    made["token_embd.weight besides"] = lambda t, f: t.update({"token_embd.weight": np.zeros((100, 64), np.float32)})
    made["no target_layers"] = lambda t, f: f.pop("dflash.target_layers")
    made["no mask_token_id"] = lambda t, f: f.pop("tokenizer.ggml.mask_token_id")
    made["architecture llama"] = lambda t, f: f.update(
        {"general.architecture": ("llama", f["general.architecture"][1])}
    )
    return made


def test_every_single_mistake_in_a_gguf_is_refused(exported: Callable[[str], Path]) -> None:
    path = gguf_file(exported("gguf"))
    assert path is not None
    assert read_gguf(mutated_gguf(path, lambda tensors, fields: None))
    for name, mutate in gguf_mutations().items():
        assert why_refused(lambda: read_gguf(mutated_gguf(path, mutate))) is not None, name  # noqa: B023


@pytest.mark.parametrize("format", ["speculators", "transformers"])
def test_every_single_wrong_tensor_is_refused_in_the_other_layouts(
    format: str, exported: Callable[[str], Path]
) -> None:
    directory = exported(format)
    right = load_file(directory / "model.safetensors")
    for name, tensor in right.items():
        wrong: dict[str, dict[str, torch.Tensor]] = {
            "missing": {n: t for n, t in right.items() if n != name},
            "of another type": {**right, name: tensor.float()},
            "short": {**right, name: tensor[1:].clone()},
            "renamed": {**{n: t for n, t in right.items() if n != name}, "model." + name: tensor},
        }
        if tensor.dim() == 2 and tensor.shape[0] != tensor.shape[1]:
            wrong["transposed"] = {**right, name: tensor.T.contiguous()}
        for what, tensors in wrong.items():
            save_file(tensors, directory / "model.safetensors")
            assert name in (why_refused(lambda: read_drafter(directory)) or ""), what


def test_a_speculator_that_samples_from_its_anchor_is_refused(exported: Callable[[str], Path]) -> None:
    directory = exported("speculators")
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    (directory / "config.json").write_text(json.dumps({**config, "sample_from_anchor": True}), encoding="utf-8")
    with pytest.raises(ModelError, match="sample_from_anchor"):
        read_drafter(directory)
    del config["aux_hidden_state_layer_ids"]
    (directory / "config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(ModelError, match="aux_hidden_state_layer_ids"):
        read_drafter(directory)


def test_a_torn_gguf_is_one_clear_error(exported: Callable[[str], Path]) -> None:
    path = gguf_file(exported("gguf"))
    assert path is not None
    whole = path.read_bytes()
    for length in (0, 3, 100, len(whole) // 2, len(whole) - 10):
        path.write_bytes(whole[:length])
        with pytest.raises(ExportError, match="cannot be read as a GGUF file"):
            read_gguf(path)


def test_the_gguf_of_another_model_is_refused_as_a_source_of_the_tokenizer(
    exported: Callable[[str], Path], tokenizer: Any, trained: Drafter, tmp_path: Path, vocabulary: GgufTokenizer
) -> None:
    path = gguf_file(exported("gguf"))
    assert path is not None
    copied = tokenizer_of_gguf(path)
    copied.check_same(tokenizer, "tiny-random")

    def other_token(tensors: Any, fields: dict[str, Any]) -> None:
        tokens, types = fields["tokenizer.ggml.tokens"]
        fields["tokenizer.ggml.tokens"] = ([*tokens[:50], "other", *tokens[51:]], types)

    other = tokenizer_of_gguf(mutated_gguf(path, other_token))
    with pytest.raises(ExportError, match=r"token 50 'other', where the tokenizer of tiny-random has"):
        other.check_same(tokenizer, "tiny-random")
    short = GgufTokenizer("some.gguf", {"tokenizer.ggml.tokens": (vocabulary.tokens[:-1], ())})
    with pytest.raises(ExportError, match=r"some\.gguf has 99 tokens, but the drafter's target has 100"):
        export_gguf(trained, tmp_path / "short", card="", tokenizer=short)


def test_the_command_writes_every_format_with_a_card_that_says_how_to_serve_it(
    finished_run: Path, tmp_path: Path
) -> None:
    commands = {
        "hf": ["vllm serve tiny-random", "--speculative-num-draft-tokens 8"],
        "speculators": ["vllm serve <this directory>"],
        "transformers": ['speculation_type="dflash"'],
        "gguf": ["--spec-draft-n-max 7"],
    }
    for format, serve in commands.items():
        done = draftsmith("export", finished_run, tmp_path / format, "--format", format)
        assert done.code == 0, done.err
        card = (tmp_path / format / "README.md").read_text(encoding="utf-8")
        for line in [*serve, "base_model: tiny-random", "holdout: ", "target revision: not pinned", "loss ce"]:
            assert line in card, (format, line)
    done = draftsmith("export", finished_run, tmp_path / "q8", "--format", "gguf", "--dtype", "q8_0")
    assert done.code == 0, done.err
    assert (tmp_path / "q8" / "drafter-q8_0.gguf").is_file()


def test_the_command_refuses_what_it_does_not_know(finished_run: Path, tmp_path: Path) -> None:
    for wrong, named in {
        ("--format", "onnx"): "known are hf, speculators, transformers, gguf",
        ("--dtype", "f16"): "belong to --format gguf",
        ("--format", "gguf", "--dtype", "q4_0"): "f32, f16, bf16, q8_0",
        ("--format", "gguf", "--target-gguf", str(tmp_path / "none.gguf")): "cannot be read as a GGUF file",
    }.items():
        done = draftsmith("export", finished_run, tmp_path / "drafter", *wrong)
        assert done.code == 2
        assert named in done.err
        assert not (tmp_path / "drafter").exists()


def test_a_card_has_no_figures_for_weights_that_were_not_measured(finished_run: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished_run, run)
    summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    (run / "summary.json").write_text(json.dumps({**summary, "params_sha256": "0" * 64}), encoding="utf-8")
    assert draftsmith("export", run, tmp_path / "drafter").code == 0
    assert "tokens per target forward" not in (tmp_path / "drafter" / "README.md").read_text(encoding="utf-8")
