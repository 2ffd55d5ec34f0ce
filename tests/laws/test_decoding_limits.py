"""Where decoding could go wrong: many prompts, long texts, padded vocabularies, models that compute no numbers."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import pytest
import torch

from draftsmith.config import TargetConfig
from draftsmith.drafter import Drafter
from draftsmith.errors import DataError, ModelError
from draftsmith.evaluation import Rule, gsm8k_prompts, humaneval_prompts, speculate
from draftsmith.target import Sampling, Target, generate, load_target, load_tokenizer, resolve_mask_token_id
from helpers import BLOCK_SIZE, new_drafter, random_text


def hugging_face(target: Target, prompt: Sequence[int], max_new_tokens: int) -> list[int]:
    ids = torch.tensor([prompt])
    found = target.model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=max_new_tokens, do_sample=False
    )
    return list(found[0, len(prompt) :].tolist())


def test_a_hundred_prompts_are_answered_as_without_a_drafter(target: Target, trained: Drafter) -> None:
    prompts = [random_text(seed, 3 + seed % 40).tolist() for seed in range(100)]
    plain = generate(target, prompts, max_new_tokens=24)
    assert [answer.tokens for answer in speculate(trained, target, prompts, max_new_tokens=24)] == plain
    assert plain[::20] == [hugging_face(target, prompt, 24) for prompt in prompts[::20]]


@pytest.mark.long
@pytest.mark.smollm2
@pytest.mark.timeout(3000)
def test_on_smollm2_a_hundred_prompts_are_answered_as_by_generate_of_transformers() -> None:
    config = TargetConfig(model="smollm2-135m", dtype="float32")
    smollm2, tokenizer = load_target(config), load_tokenizer(config)
    mask = resolve_mask_token_id(tokenizer, vocab_size=smollm2.vocab_size, eos_token_ids=smollm2.eos_token_ids)
    drafter = new_drafter(smollm2, mask_token_id=mask, num_layers=1)
    prompts = [*humaneval_prompts(tokenizer, 50), *gsm8k_prompts(tokenizer, 50)]
    prompts.sort(key=len)
    for start in range(0, len(prompts), 10):
        batch = prompts[start : start + 10]
        found = [answer.tokens for answer in speculate(drafter, smollm2, batch, max_new_tokens=24)]
        assert found == [hugging_face(smollm2, prompt, 24) for prompt in batch]


@pytest.mark.parametrize("verify", [None, 3])
def test_up_to_the_targets_last_position_answers_are_the_targets_own(
    verify: int | None, target: Target, trained: Drafter
) -> None:
    """The last blocks would reach beyond position 2047 and are verified only as far as there is room."""
    limit = 30
    prompts = [random_text(1, target.max_length - limit).tolist(), random_text(2, 40).tolist()]
    found = speculate(trained, target, prompts, max_new_tokens=limit, rule=Rule(verify=verify))
    assert [answer.tokens for answer in found] == generate(target, prompts, max_new_tokens=limit)
    assert found[0].tokens == hugging_face(target, prompts[0], limit)
    assert len(found[0].tokens) == limit


@pytest.mark.parametrize("answer", [generate, speculate])
def test_a_prompt_without_room_for_its_answer_is_refused_by_number_and_length(
    answer: object, target: Target, trained: Drafter, prompts: list[list[int]]
) -> None:
    models = (target,) if answer is generate else (trained, target)
    asked = [prompts[0], random_text(1, 2040).tolist()]
    with pytest.raises(DataError, match=r"prompt 2 of 2 has 2040 tokens, .*max_new_tokens=9 is beyond the 2048"):
        answer(*models, asked, max_new_tokens=9)  # type: ignore[operator]
    with pytest.raises(DataError, match="prompt 2 of 2 is empty"):
        answer(*models, [prompts[0], []], max_new_tokens=9)  # type: ignore[operator]


def test_rows_of_the_head_beyond_the_tokenizer_change_nothing(target: Target, prompts: list[list[int]]) -> None:
    model = copy.deepcopy(target.model)
    model.model.layers[target.layer_ids[0]]._forward_hooks.clear()
    for layer in model.model.layers:
        layer._forward_hooks.clear()
    model.resize_token_embeddings(target.vocab_size + 28, mean_resizing=False)
    padded = Target(model, layer_ids=target.layer_ids, num_taps=5, name="padded")
    assert padded.vocab_size == target.vocab_size + 28
    found = speculate(new_drafter(padded), padded, prompts, max_new_tokens=20)
    assert [answer.tokens for answer in found] == [hugging_face(padded, prompt, 20) for prompt in prompts]


@pytest.mark.parametrize("rule", [Rule(), Rule(Sampling(1.0)), Rule(Sampling(1.0), "sampled")], ids=str)
def test_a_model_that_computes_no_numbers_is_an_error_and_not_an_answer(
    rule: Rule, target: Target, trained: Drafter, prompts: list[list[int]]
) -> None:
    broken = copy.deepcopy(trained)
    broken.norm.weight.data[0] = torch.nan
    seeds = range(len(prompts))
    with pytest.raises(ModelError, match=r"the drafter gives logits that are no numbers"):
        speculate(broken, target, prompts, max_new_tokens=4, rule=rule, seeds=seeds)
    weight = target.model.model.norm.weight.data
    kept = weight[0].item()
    weight[0] = torch.nan
    try:
        with pytest.raises(ModelError, match=r"target tiny-random gives logits that are no numbers"):
            speculate(trained, target, prompts, max_new_tokens=4, rule=rule, seeds=seeds)
        with pytest.raises(ModelError, match=r"target tiny-random gives logits that are no numbers"):
            generate(target, prompts, max_new_tokens=4, sampling=rule.sampling, seeds=seeds)
    finally:
        weight[0] = kept


def test_a_block_of_two_slots_is_the_smallest_and_works(
    target: Target, prompts: list[list[int]], answers: list[list[int]]
) -> None:
    found = speculate(new_drafter(target, block_size=2), target, prompts, max_new_tokens=32)
    assert [answer.tokens for answer in found] == answers
    assert max(count for answer in found for count in answer.committed) <= 2 < BLOCK_SIZE
