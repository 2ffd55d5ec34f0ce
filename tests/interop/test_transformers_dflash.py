"""Transformers' own DFlash generation as an oracle: the same weights draft the same tokens, as many are accepted.

Its network was written by others; its names differ from the z-lab layout in the projection and norm of the context.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from transformers.generation.candidate_generator import DFlashTokenCandidateGenerator
from transformers.models.muse_glimmer_assistant import MuseGlimmerAssistantConfig, MuseGlimmerAssistantModel

from draftsmith.config import TargetConfig
from draftsmith.drafter import Drafter
from draftsmith.evaluation import Decoded, speculate
from draftsmith.target import Target, load_target, load_tokenizer, resolve_mask_token_id
from helpers import new_drafter
from tolerances import OTHER_IMPLEMENTATION

RENAMED = {"fc.weight": "encoder.fc.weight", "hidden_norm.weight": "encoder.output_norm_enc.weight"}


def assistant_of(drafter: Drafter) -> Any:
    """The same drafter in Transformers' own network."""
    shape = drafter.shape
    config = MuseGlimmerAssistantConfig(
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_hidden_layers=shape.num_hidden_layers,
        num_attention_heads=shape.num_attention_heads,
        num_key_value_heads=shape.num_key_value_heads,
        head_dim=shape.head_dim,
        rms_norm_eps=shape.rms_norm_eps,
        rope_parameters={"rope_type": "default", "rope_theta": shape.rope_theta},
        max_position_embeddings=shape.max_position_embeddings,
        layer_types=["full_attention"] * shape.num_hidden_layers,
        block_size=shape.block_size,
        mask_token_id=shape.mask_token_id,
        target_layer_ids=list(shape.target_layer_ids),
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    assistant = MuseGlimmerAssistantModel(config).eval()
    assistant.load_state_dict({RENAMED.get(name, name): t for name, t in drafter.state_dict().items()}, strict=True)
    return assistant


def generate_with_assistant(
    monkeypatch: pytest.MonkeyPatch, assistant: Any, target: Target, prompt: Sequence[int], max_new_tokens: int
) -> Decoded:
    """Transformers' answer, and what it committed in every verification (its first round only reads the prompt)."""
    matches: list[int] = []
    monkeypatch.setattr(
        DFlashTokenCandidateGenerator,
        "update_candidate_strategy",
        lambda _self, _ids, _scores, num_matches: matches.append(int(num_matches)),
    )
    ids = torch.tensor([prompt])
    found = target.model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        assistant_model=assistant,
        speculation_type="dflash",
        max_new_tokens=max_new_tokens,
        do_sample=False,
    )
    return Decoded(found[0, len(prompt) :].tolist(), [number + 1 for number in matches[1:]])


def within_limit(answer: Decoded) -> list[int]:
    """Our counts with the last cut at the token limit, as Transformers counts."""
    counts, left = [], len(answer.tokens) - 1
    for committed in answer.committed:
        counts.append(min(committed, left))
        left -= counts[-1]
    return counts


def test_the_network_computes_what_the_network_of_transformers_computes(
    target: Target, trained: Drafter, prompts: list[list[int]]
) -> None:
    prompt = torch.tensor([prompts[0]])
    length, block_size = prompt.shape[1], trained.shape.block_size
    hidden = target.features(prompt)
    block = torch.full((1, block_size), trained.shape.mask_token_id)
    block[0, 0] = 40
    noise = target.embedding(block)
    positions = torch.arange(length + block_size)[None]
    context = trained.context(hidden, positions[:, :length])
    ours = trained(noise, positions[:, length:], context, None)
    with torch.no_grad():
        theirs = assistant_of(trained)(
            noise_embeds=noise, context_hidden_states=hidden, position_ids=positions
        ).last_hidden_state
    torch.testing.assert_close(ours, theirs, **OTHER_IMPLEMENTATION)


@pytest.mark.parametrize("kind", ["trained", "untrained"])
def test_tokens_and_acceptance_counts_equal_those_of_transformers(
    kind: str, target: Target, trained: Drafter, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    drafter = trained if kind == "trained" else new_drafter(target, seed=7)
    assistant = assistant_of(drafter)
    ours = speculate(drafter, target, prompts, max_new_tokens=40)
    theirs = [generate_with_assistant(monkeypatch, assistant, target, prompt, 40) for prompt in prompts]
    assert [answer.tokens for answer in ours] == [answer.tokens for answer in theirs]
    assert [within_limit(answer) for answer in ours] == [answer.committed for answer in theirs]
    if kind == "trained":  # the comparison is worth something only if drafts are accepted now and then
        counts = [count for answer in theirs for count in answer.committed]
        assert len(set(counts)) > 2


@pytest.mark.smollm2
def test_on_smollm2_tokens_and_acceptance_counts_equal_those_of_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    config = TargetConfig(model="smollm2-135m", dtype="float32")
    smollm2, tokenizer = load_target(config), load_tokenizer(config)
    mask = resolve_mask_token_id(tokenizer, vocab_size=smollm2.vocab_size, eos_token_ids=smollm2.eos_token_ids)
    drafter = new_drafter(smollm2, mask_token_id=mask, num_layers=1)
    drafter.init_weights(torch.Generator().manual_seed(0), pass_last_tap=True)
    chat = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = list(tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False))
    ours = speculate(drafter, smollm2, [prompt], max_new_tokens=12)[0]
    theirs = generate_with_assistant(monkeypatch, assistant_of(drafter), smollm2, prompt, 12)
    assert ours.tokens == theirs.tokens
    assert within_limit(ours) == theirs.committed
