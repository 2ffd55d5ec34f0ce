"""The page that stands beside an exported drafter: what it is for, how good it is, how to serve it."""

from __future__ import annotations

from typing import Any

from draftsmith.drafter import DrafterShape


def model_card(shape: DrafterShape, summary: dict[str, Any]) -> str:
    """Markdown. Figures stand there only if they were measured."""
    lines = [
        "---",
        "library_name: draftsmith",
        "tags: [speculative-decoding, dflash]",
        "---",
        "",
        f"# DFlash drafter for {summary['target']}",
        "",
        f"Proposes blocks of {shape.block_size} tokens (the known one included) for `{summary['target']}`. "
        "The target verifies each block, so what it answers does not change.",
        "",
        f"- layers {shape.num_hidden_layers}, hidden size {shape.hidden_size}, taps {list(shape.target_layer_ids)} "
        f"of {shape.num_target_layers} layers, mask token {shape.mask_token_id}",
        f"- trained for {summary['train_steps']:,} steps on {summary['num_anchors_trained']:,} blocks, "
        f"seed {summary['seed']}",
    ]
    for name, found in summary.get("sets", {}).items():
        lines.append(
            f"- {name}: {found['length']:.2f} tokens per target forward, pooled over {found['num_verifications']:,} "
            f"verifications of {found['num_prompts']} prompts ({found['length_by_response']:.2f} as a mean of answers)"
        )
    if "lossless" in summary:
        lines.append(
            f"- {summary['num_lossless']} of {summary['num_lossless_checked']} answers equal plain greedy decoding "
            f"({summary['eval_dtype']})"
        )
    lines += [
        "",
        "Serve with vLLM: `--speculative-config '"
        f'{{"method": "dflash", "model": "<this directory>", "num_speculative_tokens": {shape.block_size - 1}}}\'`',
        "",
        "Serve with SGLang: `--speculative-algorithm DFLASH --speculative-draft-model-path <this directory> "
        f"--speculative-num-draft-tokens {shape.block_size}`",
    ]
    return "\n".join(lines) + "\n"
