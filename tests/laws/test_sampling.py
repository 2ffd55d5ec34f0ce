"""Sampled answers follow the target's own distribution exactly, whatever drafts; a draw depends on its key alone."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.generation.logits_process import (
    LogitsProcessorList,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from draftsmith.drafter import Drafter
from draftsmith.evaluation import Rule, num_own, speculate
from draftsmith.evaluation.rule import Referee
from draftsmith.keyed import keyed_generator
from draftsmith.target import GREEDY, PositionCache, Sampling, Target, draw, generate, probabilities, streams
from helpers import new_drafter

WARM = Sampling(1.0)
NUM_ANSWERS, LENGTH, VOCAB = 3000, 4, 5
PROMPT = [1, 2, 3]
RULES = {
    "argmax drafts": Rule(WARM),
    "argmax drafts, narrowed": Rule(Sampling(0.8, top_k=4, top_p=0.9)),
    "sampled drafts": Rule(WARM, "sampled"),
    "sampled drafts, narrowed": Rule(Sampling(0.8, top_k=4, top_p=0.9), "sampled"),
    "half a block": Rule(WARM, "sampled", verify=2),
}
# A correct sampler fails with this probability, at most; a wrong one of the tests below has to be far under it.
REFUSED = 1e-4


@pytest.fixture(scope="module")
def five_words() -> Target:
    """A random model of five tokens, none of which ends an answer: all answers of four tokens can be enumerated."""
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=6,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        max_position_embeddings=64,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        model = LlamaForCausalLM(config)
        for parameter in model.parameters():
            if parameter.dim() == 2:
                torch.nn.init.normal_(parameter, std=0.5)
    return Target(model, layer_ids=(1, 2), num_taps=2, name="five words")


@pytest.fixture(scope="module")
def five_drafter(five_words: Target) -> Drafter:
    return new_drafter(five_words, seed=2, mask_token_id=0, block_size=4)


def exact(target: Target, sampling: Sampling) -> dict[tuple[int, ...], float]:
    """Probability of every answer, by one forward over all of them."""
    answers = list(itertools.product(range(VOCAB), repeat=LENGTH))
    texts = torch.tensor([[*PROMPT, *answer[:-1]] for answer in answers])
    positions = torch.arange(texts.shape[1]).expand_as(texts)
    logits, _ = target.forward(texts, positions, PositionCache(texts.shape[1]))
    shares = oracle(logits[:, len(PROMPT) - 1 :], sampling).double()
    chosen = shares.gather(-1, torch.tensor(answers)[..., None])[..., 0].prod(-1)
    return dict(zip(answers, chosen.tolist(), strict=True))


def oracle(logits: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """What Transformers would sample from."""
    warpers = LogitsProcessorList([TemperatureLogitsWarper(sampling.temperature)])
    if sampling.top_k:
        warpers.append(TopKLogitsWarper(sampling.top_k))
    if sampling.top_p < 1:
        warpers.append(TopPLogitsWarper(sampling.top_p))
    flat = logits.flatten(0, -2)
    return warpers(None, flat).softmax(-1).view_as(logits)


def p_value(found: Counter[tuple[int, ...]], expected: dict[tuple[int, ...], float]) -> float:
    """Chi-square: how likely a right sampler is to miss the expected counts by as much. Rare answers are pooled."""
    total = sum(found.values())
    assert all(expected[answer] > 0 for answer in found)
    cells, rare = [], [0.0, 0.0]
    for answer, share in expected.items():
        if share * total >= 5:
            cells.append((found[answer], share * total))
        else:
            rare = [rare[0] + found[answer], rare[1] + share * total]
    if rare[1] >= 5:
        cells.append((int(rare[0]), rare[1]))
    statistic = sum((seen - wanted) ** 2 / wanted for seen, wanted in cells)
    degrees = len(cells) - 1
    return float(torch.special.gammaincc(torch.tensor(degrees / 2).double(), torch.tensor(statistic / 2).double()))


def sampled(target: Target, drafter: Drafter, rule: Rule, *, first_seed: int = 0) -> Counter[tuple[int, ...]]:
    seeds = range(first_seed, first_seed + NUM_ANSWERS)
    answers = speculate(drafter, target, [PROMPT] * NUM_ANSWERS, max_new_tokens=LENGTH, rule=rule, seeds=seeds)
    return Counter(tuple(answer.tokens) for answer in answers)


@pytest.mark.parametrize("name", RULES)
def test_answers_follow_the_exact_distribution_of_the_target(
    name: str, five_words: Target, five_drafter: Drafter
) -> None:
    rule = RULES[name]
    expected = exact(five_words, rule.sampling)
    assert sum(expected.values()) == pytest.approx(1, abs=1e-5)
    assert p_value(sampled(five_words, five_drafter, rule), expected) > REFUSED


def test_plain_sampling_follows_the_exact_distribution_of_the_target(five_words: Target) -> None:
    answers = generate(
        five_words, [PROMPT] * NUM_ANSWERS, max_new_tokens=LENGTH, sampling=WARM, seeds=range(NUM_ANSWERS)
    )
    assert p_value(Counter(map(tuple, answers)), exact(five_words, WARM)) > REFUSED


def test_many_drafts_are_accepted_and_many_are_not_so_that_the_distribution_depends_on_both(
    five_words: Target, five_drafter: Drafter
) -> None:
    for rule in (RULES["argmax drafts"], RULES["sampled drafts"]):
        answers = speculate(
            five_drafter, five_words, [PROMPT] * 200, max_new_tokens=LENGTH, rule=rule, seeds=range(200)
        )
        counts = Counter(count for answer in answers for count in answer.committed)
        assert min(counts[1], sum(counts.values()) - counts[1]) > 20, counts


def _keeps_what_was_only_drafted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Accepts sampled drafts that are not the target's choice, as often as they are likely."""

    def verdict(self: Referee, drafts, drafted, logits, index):  # type: ignore[no-untyped-def]
        shares = probabilities(logits, self._rule.sampling, whose="the target")
        likely = shares[:, :-1].gather(2, drafts[..., None])[..., 0]
        kept = (self._uniforms("accept", index, drafts.shape[1]) < likely + 0.1).long().cumprod(-1).sum(-1)
        rows = torch.arange(len(kept))
        return kept, draw(shares[rows, kept], self._uniforms("replace", index + kept, 1)[:, 0])

    monkeypatch.setattr(Referee, "verdict", verdict)


def _replaces_from_the_whole_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rejects as it should, but then draws from p instead of what is left of it."""
    whole = Referee._rejection

    def rejection(self: Referee, drafts, drafted, logits, index):  # type: ignore[no-untyped-def]
        kept, _ = whole(self, drafts, drafted, logits, index)
        shares = probabilities(logits, self._rule.sampling, whose="the target")
        return kept, draw(shares[torch.arange(len(kept)), kept], self._uniforms("replace", index + kept, 1)[:, 0])

    monkeypatch.setattr(Referee, "_rejection", rejection)


def _replaces_with_the_number_that_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Referee._uniforms

    def uniforms(self: Referee, purpose: str, index: torch.Tensor, num: int) -> torch.Tensor:
        return honest(self, "accept" if purpose == "replace" else purpose, index, num)

    monkeypatch.setattr(Referee, "_uniforms", uniforms)


def _verifies_greedily(monkeypatch: pytest.MonkeyPatch) -> None:
    """Samples the first token only, as servers do whose kernel for sampling is missing."""

    def verdict(self: Referee, drafts, drafted, logits, index):  # type: ignore[no-untyped-def]
        chosen = logits.argmax(-1)
        kept = (drafts == chosen[:, :-1]).long().cumprod(-1).sum(-1)
        return kept, chosen.gather(1, kept[:, None])[:, 0]

    monkeypatch.setattr(Referee, "verdict", verdict)


@pytest.mark.parametrize(
    ("mistake", "draft"),
    [
        (_keeps_what_was_only_drafted, "sampled"),
        (_replaces_from_the_whole_distribution, "sampled"),
        (_replaces_with_the_number_that_refused, "sampled"),
        (_verifies_greedily, "argmax"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_the_test_of_the_distribution_finds_a_wrong_sampler(
    mistake, draft, five_words: Target, five_drafter: Drafter, monkeypatch: pytest.MonkeyPatch
) -> None:  # type: ignore[no-untyped-def]
    mistake(monkeypatch)
    found = sampled(five_words, five_drafter, Rule(WARM, draft))
    assert p_value(found, exact(five_words, WARM)) < REFUSED / 100


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    temperature=st.floats(0.1, 3),
    top_k=st.integers(0, 12),
    top_p=st.floats(0.05, 1),
)
def test_the_distribution_is_that_of_transformers(seed: int, temperature: float, top_k: int, top_p: float) -> None:
    logits = torch.from_numpy(keyed_generator(seed, "logits").normal(size=(2, 3, 10))).float() * 3
    sampling = Sampling(temperature, top_k, top_p)
    found, expected = probabilities(logits, sampling, whose="x"), oracle(logits, sampling)
    # Where the kept shares reach top_p to the last bit, the two may differ by one token.
    same = ((found > 0) == (expected > 0)).all(-1)
    assert same.float().mean() > 0.6
    torch.testing.assert_close(found[same], expected[same], rtol=1e-4, atol=1e-6)


def test_a_draw_never_takes_a_token_of_no_weight() -> None:
    weights = torch.tensor([[0.0, 0.25, 0.0, 0.75, 0.0]]).expand(7, -1)
    uniforms = torch.tensor([0.0, 0.249, 0.25, 0.251, 0.5, 0.999, 1 - 2**-53], dtype=torch.float64)
    assert draw(weights, uniforms).tolist() == [1, 1, 3, 3, 3, 3, 3]


def test_greedy_needs_no_seeds_and_sampling_refuses_to_guess_them(target: Target, prompts: list[list[int]]) -> None:
    assert not streams(GREEDY, (), "token", (2, 3), target.device).any()
    with pytest.raises(ValueError, match="2 sampled answers need as many seeds, not 0"):
        generate(target, prompts[:2], max_new_tokens=2, sampling=WARM)


@pytest.mark.parametrize("verify", [None, 2, 5])
def test_sampled_speculative_answers_equal_plain_sampled_ones_token_by_token(
    verify: int | None, target: Target, trained: Drafter, prompts: list[list[int]]
) -> None:
    sampling, seeds = Sampling(0.7, top_p=0.95), range(len(prompts))
    plain = generate(target, prompts, max_new_tokens=24, sampling=sampling, seeds=seeds)
    rule = Rule(sampling, verify=verify)
    found = speculate(trained, target, prompts, max_new_tokens=24, rule=rule, seeds=seeds)
    assert [answer.tokens for answer in found] == plain
    assert any(count > 1 for answer in found for count in answer.committed)  # drafts take part
    assert num_own(target, prompts, plain, sampling=sampling, seeds=seeds) == len(prompts)
    wrong = [*plain[0][:-1], 4 if plain[0][-1] != 4 else 5]
    assert num_own(target, prompts, [wrong, *plain[1:]], sampling=sampling, seeds=seeds) == len(prompts) - 1


@pytest.mark.parametrize("draft", ["argmax", "sampled"])
def test_a_sampled_answer_does_not_depend_on_its_batch(
    draft: str, target: Target, trained: Drafter, prompts: list[list[int]]
) -> None:
    rule = Rule(Sampling(0.9), draft)  # type: ignore[arg-type]
    seeds = [7, 11, 13, 17, 19]
    together = speculate(trained, target, prompts, max_new_tokens=16, rule=rule, seeds=seeds)
    for i in range(len(prompts)):
        (alone,) = speculate(trained, target, prompts[i : i + 1], max_new_tokens=16, rule=rule, seeds=seeds[i : i + 1])
        assert alone == together[i]
    others = speculate(trained, target, prompts, max_new_tokens=16, rule=rule, seeds=[s + 1 for s in seeds])
    assert others != together


def test_sampling_among_one_token_is_greedy(target: Target, trained: Drafter, prompts: list[list[int]]) -> None:
    greedy = speculate(trained, target, prompts, max_new_tokens=12)
    for draft in ("argmax", "sampled"):
        rule = Rule(Sampling(1.0, top_k=1), draft)  # type: ignore[arg-type]
        assert speculate(trained, target, prompts, max_new_tokens=12, rule=rule, seeds=range(len(prompts))) == greedy


def test_two_streams_of_one_seed_share_no_number() -> None:
    found: Iterator[torch.Tensor] = (
        streams(WARM, [5], purpose, (1, 50), torch.device("cpu"))[0] for purpose in ("token", "draft", "accept")
    )
    numbers = torch.cat(list(found)).tolist()
    assert len(set(numbers)) == len(numbers)
