"""Speculative answers are the target's own, whatever the drafter says; what is counted is what was committed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from draftsmith.config import TargetConfig
from draftsmith.drafter import Drafter
from draftsmith.errors import ModelError
from draftsmith.evaluation import Decoded, acceptance_of, measure_speed, num_own, speculate
from draftsmith.target import Sampling, Target, generate, load_target, load_tokenizer, resolve_mask_token_id
from draftsmith.training import TrainState, train_step
from helpers import BLOCK_SIZE, StubDrafter, feature_batch, new_drafter, tiny_config, with_shape

AGREEMENT: dict[str, Callable[[int], bool]] = {
    "always": lambda index: True,
    "never": lambda index: False,
    "sometimes": lambda index: index % 5 != 3,
}


def hugging_face_answer(target: Target, prompt: Sequence[int], max_new_tokens: int) -> list[int]:
    ids = torch.tensor([prompt])
    found = target.model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=max_new_tokens, do_sample=False
    )
    return found[0, len(prompt) :].tolist()


def stub(
    target: Target, prompts: list[list[int]], answers: list[list[int]], agreement: str, reference: Drafter
) -> Drafter:
    return StubDrafter(target, reference.shape, prompts, answers, AGREEMENT[agreement])  # type: ignore[return-value]


def test_plain_decoding_equals_generate_of_transformers(
    target: Target, prompts: list[list[int]], answers: list[list[int]]
) -> None:
    assert answers == [hugging_face_answer(target, prompt, 32) for prompt in prompts]


@pytest.mark.parametrize("seed", range(4))
def test_with_an_untrained_drafter_answers_equal_greedy_decoding(
    seed: int, target: Target, prompts: list[list[int]], answers: list[list[int]]
) -> None:
    found = speculate(new_drafter(target, seed=seed), target, prompts, max_new_tokens=32)
    assert [answer.tokens for answer in found] == answers


def test_with_a_trained_drafter_answers_equal_greedy_decoding(
    target: Target, trained: Drafter, prompts: list[list[int]], answers: list[list[int]]
) -> None:
    found = speculate(trained, target, prompts, max_new_tokens=32)
    assert [answer.tokens for answer in found] == answers
    assert acceptance_of(found, block_size=BLOCK_SIZE).length > 1.2  # the drafter matters here


@pytest.mark.parametrize("agreement", AGREEMENT)
def test_with_a_stub_drafter_answers_equal_greedy_decoding(
    agreement: str, target: Target, trained: Drafter, prompts: list[list[int]], answers: list[list[int]]
) -> None:
    found = speculate(stub(target, prompts, answers, agreement, trained), target, prompts, max_new_tokens=32)
    assert [answer.tokens for answer in found] == answers


def test_a_drafter_that_always_agrees_commits_whole_blocks(
    target: Target, trained: Drafter, prompts: list[list[int]], answers: list[list[int]]
) -> None:
    drafter = stub(target, prompts, answers, "always", trained)
    for answer, expected in zip(speculate(drafter, target, prompts, max_new_tokens=33), answers, strict=True):
        left = len(expected) - 1  # what the stub knows
        assert answer.committed[: left // BLOCK_SIZE] == [BLOCK_SIZE] * (left // BLOCK_SIZE)


def test_a_drafter_that_never_agrees_commits_one_token_a_time(
    target: Target, trained: Drafter, prompts: list[list[int]], answers: list[list[int]]
) -> None:
    drafter = stub(target, prompts, answers, "never", trained)
    for answer in speculate(drafter, target, prompts, max_new_tokens=32):
        assert answer.committed == [1] * (len(answer.tokens) - 1)


def test_acceptance_stops_at_the_first_disagreement_even_if_later_drafts_agree(
    target: Target, trained: Drafter, prompts: list[list[int]], answers: list[list[int]]
) -> None:
    which = max(range(len(prompts)), key=lambda i: len(answers[i]))
    assert len(answers[which]) == 32
    drafter = stub(target, prompts[which : which + 1], answers[which : which + 1], "sometimes", trained)
    (answer,) = speculate(drafter, target, prompts[which : which + 1], max_new_tokens=32)
    # Wrong at 3, 8, 13, ...: from token 0 two drafts and the target's own; then four drafts and the target's own.
    assert answer.committed[:5] == [3, 5, 5, 5, 5]


@settings(max_examples=12, deadline=None)
@given(rows=st.lists(st.integers(0, 4), min_size=1, max_size=5), limit=st.integers(1, 25))
def test_a_batch_of_different_lengths_equals_one_prompt_at_a_time(
    rows: list[int], limit: int, target: Target, trained: Drafter, prompts: list[list[int]]
) -> None:
    chosen = [prompts[row] for row in rows]
    together = speculate(trained, target, chosen, max_new_tokens=limit)
    alone = [speculate(trained, target, [prompt], max_new_tokens=limit)[0] for prompt in chosen]
    assert together == alone
    assert generate(target, chosen, max_new_tokens=limit) == [answer.tokens for answer in together]


@pytest.mark.parametrize("limit", [1, 2, 7, 8, 9, 20])
def test_answers_stop_at_the_token_limit_wherever_it_falls_in_a_block(
    limit: int, target: Target, trained: Drafter, prompts: list[list[int]], answers: list[list[int]]
) -> None:
    for agreement in AGREEMENT:
        drafter = stub(target, prompts, answers, agreement, trained)
        found = speculate(drafter, target, prompts, max_new_tokens=limit)
        assert [answer.tokens for answer in found] == [answer[:limit] for answer in answers]


@pytest.mark.parametrize("agreement", AGREEMENT)
def test_nothing_follows_the_end_token_and_what_follows_it_is_not_counted(
    agreement: str,
    target: Target,
    trained: Drafter,
    prompts: list[list[int]],
    answers: list[list[int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    index = next(i for i in range(4, 30) if answers[0].index(answers[0][i]) == i)  # its first occurrence
    monkeypatch.setattr(target.model.generation_config, "eos_token_id", [answers[0][index], target.config.eos_token_id])
    expected = generate(target, prompts, max_new_tokens=32)
    assert expected[0] == answers[0][: index + 1]
    found = speculate(stub(target, prompts, answers, agreement, trained), target, prompts, max_new_tokens=32)
    assert [answer.tokens for answer in found] == expected
    for answer in found:
        if answer.tokens[-1] in target.eos_token_ids:
            assert sum(answer.committed) == len(answer.tokens) - 1


def test_an_answer_that_is_only_the_end_token_needs_no_verification(
    target: Target,
    trained: Drafter,
    prompts: list[list[int]],
    answers: list[list[int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(target.model.generation_config, "eos_token_id", answers[0][0])
    (answer,) = speculate(trained, target, prompts[:1], max_new_tokens=32)
    assert answer == Decoded([answers[0][0]], [])


def test_the_mask_id_is_an_ordinary_token_in_an_answer(
    target: Target, prompts: list[list[int]], answers: list[list[int]]
) -> None:
    drafter = new_drafter(
        target, mask_token_id=answers[0][3]
    )  # answers are cut by count, never by looking for the mask
    found = speculate(drafter, target, prompts, max_new_tokens=32)
    assert [answer.tokens for answer in found] == answers


def test_acceptance_is_pooled_over_verifications_and_also_averaged_over_answers() -> None:
    answers = [Decoded([0] * 9, [4, 4]), Decoded([0] * 3, [1, 1]), Decoded([0], []), Decoded([0] * 4, [3])]
    found = acceptance_of(answers, block_size=4)
    assert found.length == pytest.approx(13 / 5)
    assert found.length_by_response == pytest.approx((4 + 1 + 3) / 3)
    assert found.by_slot == pytest.approx((3 / 5, 3 / 5, 2 / 5))
    assert (found.num_prompts, found.num_verifications) == (4, 5)
    assert 1 + sum(found.by_slot) == pytest.approx(found.length)  # every slot adds the share in which it is accepted


def test_acceptance_of_no_verification_is_zero_and_not_an_error() -> None:
    found = acceptance_of([Decoded([1], [])], block_size=4)
    assert (found.length, found.length_by_response, found.by_slot) == (0, 0, (0, 0, 0))


def test_the_proof_of_equality_counts_only_answers_that_are_greedy_at_every_position(
    target: Target, prompts: list[list[int]], answers: list[list[int]]
) -> None:
    assert num_own(target, prompts, answers) == len(prompts)
    for place in (0, 5, len(answers[0]) - 1):
        wrong = list(answers[0])
        wrong[place] = 4 if wrong[place] != 4 else 5
        assert num_own(target, prompts, [wrong, *answers[1:]]) == len(prompts) - 1


def test_a_sampled_answer_depends_on_its_own_seed_and_not_on_its_neighbours(
    target: Target, prompts: list[list[int]]
) -> None:
    settings_: Any = {"max_new_tokens": 12, "sampling": Sampling(1.0)}
    together = generate(target, prompts[:3], seeds=[1, 2, 3], **settings_)
    assert generate(target, prompts[1:2], seeds=[2], **settings_) == together[1:2]
    assert generate(target, prompts[1:2], seeds=[5], **settings_) != together[1:2]


def test_an_overfitted_drafter_reaches_an_acceptance_near_the_block_size(
    target: Target, prompts: list[list[int]], answers: list[list[int]]
) -> None:
    which = max(range(len(prompts)), key=lambda i: len(set(answers[i])))
    (answer,) = generate(target, prompts[which : which + 1], max_new_tokens=33)
    item = feature_batch(target, [[*prompts[which], *answer]], [len(prompts[which])])
    config = tiny_config("train.lr=5e-3", "drafter.num_anchors=32", "train.gamma=100")
    state = TrainState.create(new_drafter(target), config)
    for step in range(150):
        train_step(state, item, target, config, progress=step / 150)
    (found,) = speculate(state.drafter, target, prompts[which : which + 1], max_new_tokens=33)
    assert found.tokens == answer
    assert acceptance_of([found], block_size=BLOCK_SIZE).length >= BLOCK_SIZE - 1


def test_speed_is_measured_on_the_same_answers_and_says_their_acceptance(
    target: Target, trained: Drafter, prompts: list[list[int]]
) -> None:
    speed = measure_speed(trained, target, prompts[:2], max_new_tokens=8)
    assert speed.num_timed_prompts == 2
    assert speed.speedup == speed.speculative_tokens_per_s / speed.baseline_tokens_per_s
    assert min(speed.baseline_tokens_per_s, speed.speculative_tokens_per_s) > 0
    decoded = speculate(trained, target, prompts[:2], max_new_tokens=8)
    assert speed.timed_acceptance_length == acceptance_of(decoded, block_size=BLOCK_SIZE).length


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"hidden_size": 32}, "hidden size 32, but tiny-random has 64"),
        ({"vocab_size": 7}, "vocabulary 7, but tiny-random has 100"),
        ({"num_target_layers": 6}, "number of layers 6, but tiny-random has 8"),
        ({"target_layer_ids": (0, 1, 2, 3, 4)}, r"tapped layers \[0, 1, 2, 3, 4\], but tiny-random has"),
    ],
)
def test_a_drafter_of_another_target_is_refused_with_both_values(
    changes: dict[str, object], named: str, target: Target, trained: Drafter, prompts: list[list[int]]
) -> None:
    other = Drafter(with_shape(trained, **changes))
    with pytest.raises(ModelError, match=named):
        speculate(other, target, prompts, max_new_tokens=4)


@pytest.mark.smollm2
def test_on_smollm2_speculative_answers_equal_generate_of_transformers() -> None:
    config = TargetConfig(model="smollm2-135m", dtype="float32")
    smollm2, tokenizer = load_target(config), load_tokenizer(config)
    mask = resolve_mask_token_id(tokenizer, vocab_size=smollm2.vocab_size, eos_token_ids=smollm2.eos_token_ids)
    drafter = new_drafter(smollm2, mask_token_id=mask, num_layers=1)
    questions = ["Name three colours.", "What is 2 + 2? Answer with one number and nothing else."]
    prompts = [
        list(
            tokenizer.apply_chat_template(
                [{"role": "user", "content": q}], add_generation_prompt=True, return_dict=False
            )
        )
        for q in questions
    ]
    found = speculate(drafter, smollm2, prompts, max_new_tokens=10)
    assert [answer.tokens for answer in found] == [hugging_face_answer(smollm2, prompt, 10) for prompt in prompts]
