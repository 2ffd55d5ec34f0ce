"""llama.cpp's server, which we did not write, drafts with our export: its text unchanged, its acceptance ours."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from draftsmith.drafter import Drafter
from draftsmith.errors import EngineMissing
from draftsmith.evaluation import measure_server, speculate, walk
from draftsmith.export import export_drafter, model_card
from draftsmith.export.gguf_tokenizer import tokenizer_as_gguf
from draftsmith.export.llama_cpp import export_gguf, gguf_file
from draftsmith.export.llama_server import Served, llama_server, pooled_length
from draftsmith.target import GREEDY, Target, generate
from helpers import draftsmith
from interop.llama_gguf import write_target

NUM_TOKENS = 40


@pytest.fixture(scope="module")
def target_gguf(target: Target, tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Skips, visibly, where no server runs."""
    path = write_target(target, tokenizer, tmp_path_factory.mktemp("llama") / "target.gguf")
    try:
        with llama_server(path, context=256):
            return path
    except EngineMissing as error:
        pytest.skip(str(error))


def exported(drafter: Drafter, tokenizer: Any, directory: Path, dtype: str) -> Path:
    fields = tokenizer_as_gguf(tokenizer, "tiny-random", vocab_size=drafter.shape.vocab_size)
    found = gguf_file(export_gguf(drafter, directory / dtype, card="", tokenizer=fields, dtype=dtype))
    assert found is not None
    return found


# Keys and values in fp32 and no fused attention: with halves, a target as undecided as this one writes another text.
EXACT = ("-ctk", "f32", "-ctv", "f32", "-ctkd", "f32", "-ctvd", "f32", "-fa", "off")


def asked(
    target_gguf: Path, prompts: Sequence[Sequence[int]], drafter: Path | None = None, more: Sequence[str] = ()
) -> list[Served]:
    with llama_server(target_gguf, drafter=drafter, num_draft=7, context=256, more=more) as server:
        return [server.complete(prompt, max_new_tokens=NUM_TOKENS) for prompt in prompts]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("dtype", ["f32", "q8_0"])
def test_text_is_the_targets_own_and_acceptance_is_that_of_our_walk(
    dtype: str,
    target_gguf: Path,
    target: Target,
    trained: Drafter,
    tokenizer: Any,
    prompts: list[list[int]],
    tmp_path: Path,
) -> None:
    drafted = asked(target_gguf, prompts, exported(trained, tokenizer, tmp_path, dtype))
    plain = asked(target_gguf, prompts)
    assert [a.tokens for a in drafted] == [a.tokens for a in plain]
    assert all(answer.num_drafted == 0 for answer in plain)
    walked = [n for p, a in zip(prompts, drafted, strict=True) for n in walk(trained, target, p, a.tokens)]
    ours = sum(walked) / len(walked)
    assert ours > 1.3  # accepted now and then, or the comparison is worth nothing
    assert pooled_length(drafted) == pytest.approx(ours, rel=0.03)


@pytest.mark.timeout(600)
def test_in_fp32_every_token_and_every_count_is_ours(
    target_gguf: Path, target: Target, trained: Drafter, tokenizer: Any, prompts: list[list[int]], tmp_path: Path
) -> None:
    drafted = asked(target_gguf, prompts, exported(trained, tokenizer, tmp_path, "f32"), EXACT)
    assert [list(a.tokens) for a in drafted] == generate(target, prompts, max_new_tokens=NUM_TOKENS)
    ours = speculate(trained, target, prompts, max_new_tokens=NUM_TOKENS)
    assert [a.num_verifications for a in drafted] == [len(a.committed) for a in ours]


@pytest.mark.timeout(600)
def test_eval_measures_at_the_server_what_our_decoder_measures(
    target_gguf: Path, target: Target, trained: Drafter, tokenizer: Any, prompts: list[list[int]], tmp_path: Path
) -> None:
    drafter = exported(trained, tokenizer, tmp_path, "f32")
    with llama_server(target_gguf, drafter=drafter, num_draft=7, context=256, more=EXACT) as server:
        found = measure_server(
            "llama.cpp",
            server.address,
            prompts,
            max_new_tokens=NUM_TOKENS,
            sampling=GREEDY,
            timeout_s=300,
            progress=lambda _: None,
        )
    ours = speculate(trained, target, prompts, max_new_tokens=NUM_TOKENS)
    # A server counts the tokens of answers; a verification that the limit cuts counts whole with us.
    assert found.acceptance_length == pytest.approx(
        sum(len(a.tokens) - 1 for a in ours) / sum(len(a.committed) for a in ours)
    )
    assert found.num_tokens == sum(len(a.tokens) for a in ours)


@pytest.mark.timeout(600)
def test_verify_asks_the_server_and_says_what_it_served(
    target_gguf: Path, trained: Drafter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("draftsmith.run.verifying.READS", {})
    facts = {"target": "tiny-random", "train_steps": 1, "num_anchors_trained": 1, "seed": 0}
    directory = export_drafter(trained, tmp_path / "drafter", card=model_card(trained.shape, facts))
    done = draftsmith("verify", directory, "--target-gguf", target_gguf)
    assert done.code == 0, done.err
    assert "4 of 4 answers as without a drafter" in " ".join(done.out.split())


def test_a_gguf_with_another_tokenizer_or_of_another_model_is_refused_with_both_values(
    target: Target, tokenizer: Any, trained: Drafter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("draftsmith.run.verifying.READS", {})
    facts = {"target": "tiny-random", "train_steps": 1, "num_anchors_trained": 1, "seed": 0}
    directory = export_drafter(trained, tmp_path / "drafter", card=model_card(trained.shape, facts))
    renamed = write_target(target, tokenizer, tmp_path / "renamed.gguf", rename={40: "other"})
    done = draftsmith("verify", directory, "--target-gguf", renamed)
    assert done.code == 2
    assert "token 40 'other', where the tokenizer of tiny-random has" in done.err
    drafter = exported(trained, tokenizer, tmp_path, "f32")
    done = draftsmith("verify", directory, "--target-gguf", drafter)
    assert done.code == 2
    assert "number of layers 8, but" in done.err
