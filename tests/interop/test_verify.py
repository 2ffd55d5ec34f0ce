"""`draftsmith verify`: engines that are here pass on what we export, one that reads something else fails by name."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from draftsmith.drafter import Drafter
from draftsmith.export import export_drafter, model_card
from draftsmith.export.llama_server import Served
from draftsmith.export.readers import READS, Reading
from draftsmith.run import verifying
from draftsmith.run.verifying import Reference, Verdict, failures
from helpers import Finished, draftsmith

FACTS = {"target": "tiny-random", "train_steps": 1, "num_anchors_trained": 1, "seed": 0}


@pytest.fixture(scope="module")
def exported(trained: Drafter, tmp_path_factory: pytest.TempPathFactory) -> Path:
    destination = tmp_path_factory.mktemp("verify") / "drafter"
    return export_drafter(trained, destination, card=model_card(trained.shape, FACTS))


@pytest.fixture(scope="module")
def reference(exported: Path) -> Reference:
    return verifying._reference(exported, "tiny-random", 24)


@pytest.fixture
def right(reference: Reference) -> Reading:
    """What an engine without fault would read."""
    states = torch.zeros(1, reference.drafter.shape.block_size, 64)
    for slot, token in enumerate(reference.drafts):
        states[0, slot + 1] = reference.target.head.weight[token]
    answers = [{"tokens": a.tokens, "committed": a.committed} for a in reference.answers]
    return Reading(dict(reference.digests), states=states, answers=answers)


def by_reader(done: Finished) -> dict[str, dict[str, Any]]:
    return {verdict["reader"]: verdict for verdict in json.loads(done.out)}


@pytest.mark.timeout(600)
def test_engines_that_are_installed_pass_and_the_others_are_skipped_by_name(exported: Path) -> None:
    done = draftsmith("verify", exported, "--json")
    assert done.code == 0, done.err
    found = by_reader(done)
    assert list(found) == ["draftsmith", *READS, "llama-server"]
    for reader in ("transformers", "z-lab"):
        if found[reader]["status"] == "skipped":
            assert reader != "transformers"
            continue
        checks = ("loads", "same_tensors", "same_drafts", "same_acceptance")
        assert [found[reader][check] for check in checks] == [True] * 4, found[reader]
        assert "4 of 4 answers with equal tokens and counts" in found[reader]["detail"]
    assert found["llama-server"]["status"] == "skipped"
    assert "--target-gguf" in found["llama-server"]["detail"]
    for verdict in found.values():
        if verdict["status"] == "skipped":
            assert [verdict[check] for check in ("loads", "same_tensors", "same_drafts")] == [None] * 3


def test_a_reading_without_fault_passes(reference: Reference, right: Reading) -> None:
    verdict = verifying._judge("engine", "1", right, reference, "read as it is")
    assert verdict == Verdict(
        *("engine", "passed", "read as it is; 4 of 4 answers with equal tokens and counts", "1"),
        *(True, True, True, True),
    )


@pytest.mark.parametrize(
    ("wrong", "named"),
    {
        "another tensor": ({"tensors": {"norm.weight": "0" * 64}}, "tensors differ: norm.weight"),
        "one too many": ({"tensors": {"layers.9.extra": "0" * 64}}, "tensors differ: layers.9.extra"),
        "a random one": ({"missing": ["fc.weight"]}, "fc.weight is missing"),
        "other drafts": ({"states": torch.zeros(1, 8, 64)}, "drafts other tokens"),
        "fewer accepted": ({"answers": "fewer"}, "3 of 4 answers"),
        "causal": ({"more": {"causal": [True, True]}}, "causal is [True, True], not [False, False]"),
        "layers off by one": ({"more": {"target_layers": [1, 2, 3, 4, 5]}}, "not [2, 3, 4, 5, 6]"),
    }.values(),
)
def test_every_difference_fails_and_is_named(
    wrong: dict[str, Any], named: str, reference: Reference, right: Reading
) -> None:
    if "tensors" in wrong:
        wrong = {"tensors": {**right.tensors, **wrong["tensors"]}}
    if "answers" in wrong:
        first, *others = right.answers or []
        wrong = {"answers": [{**first, "committed": [1, *first["committed"]]}, *others]}
    verdict = verifying._judge("engine", "1", dataclasses.replace(right, **wrong), reference, "read as it is")
    assert verdict.status == "failed"
    assert named in verdict.detail
    assert failures([verdict]) == [f"engine: {verdict.detail}"]


def test_a_missing_tensor_fails(reference: Reference, right: Reading) -> None:
    tensors = {name: value for name, value in right.tensors.items() if name != "norm.weight"}
    verdict = verifying._judge("engine", "1", dataclasses.replace(right, tensors=tensors), reference, "")
    assert (verdict.status, verdict.same_tensors) == ("failed", False)


def served(reference: Reference, *, lost: int = 0) -> list[Served]:
    """What a server says that accepts what we do, or `lost` drafts fewer per answer."""
    block = reference.drafter.shape.block_size
    return [
        Served(tuple(a.tokens), len(a.committed) * (block - 1), len(a.tokens) - 1 - len(a.committed) - lost)
        for a in reference.answers
    ]


def test_a_server_passes_only_with_our_acceptance_and_its_own_text(reference: Reference) -> None:
    good = served(reference)
    assert verifying._judge_served(good, good, reference).status == "passed"
    low = verifying._judge_served(served(reference, lost=2), good, reference)
    assert (low.status, low.same_acceptance) == ("failed", False)
    other = [dataclasses.replace(good[0], tokens=(*good[0].tokens[:-1], 99)), *good[1:]]
    changed = verifying._judge_served(good, other, reference)
    assert changed.status == "failed"
    assert "3 of 4 answers as without a drafter" in changed.detail


def interpreter(path: Path, body: str) -> Path:
    """Stands in for a Python that has vLLM."""
    path.write_text(
        f"#!{sys.executable}\nimport json, sys\nif len(sys.argv) == 2:\n"
        f"    print(json.dumps({{'vLLM': '0.0'}}))\n    sys.exit()\ntask = json.load(open(sys.argv[2]))\n{body}\n",
        encoding="utf-8",
    )
    path.chmod(0o755)
    return path


@pytest.mark.timeout(600)
def test_engines_of_another_environment_are_asked_and_a_crash_there_is_a_failure(
    exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verifying, "READS", {"vLLM": "hf"})
    crashes = interpreter(tmp_path / "crashes", "print('no kernel image'); sys.exit(3)")
    done = draftsmith("verify", exported, "--python", crashes)
    assert done.code == 2
    assert "vLLM: ended with exit code 3; last: no kernel image" in done.err
    answers = "json.dump({'tensors': {}, 'missing': [], 'unexpected': []}, open(task['answer'], 'w'))"
    done = draftsmith("verify", exported, "--json", "--python", interpreter(tmp_path / "empty", answers))
    assert done.code == 2
    assert by_reader(done)["vLLM"]["same_tensors"] is False
    done = draftsmith("verify", exported, "--python", tmp_path / "none")
    assert done.code == 2
    assert "there is no interpreter" in done.err


def test_a_drafter_for_another_target_is_refused_with_both_values(exported: Path, tmp_path: Path) -> None:
    for key, value, named in (
        ("vocab_size", 512, "vocabulary 512, but tiny-random has 100"),
        ("num_target_layers", 12, "number of layers 12, but tiny-random has 8"),
    ):
        directory = tmp_path / key
        directory.mkdir()
        for file in exported.iterdir():
            (directory / file.name).write_bytes(file.read_bytes())
        config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
        (directory / "config.json").write_text(json.dumps({**config, key: value}), encoding="utf-8")
        done = draftsmith("verify", directory)
        assert done.code == 2
        assert named in done.err


def test_a_torn_export_is_refused_before_any_engine_is_asked(exported: Path, tmp_path: Path) -> None:
    for file in exported.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    weights = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(weights[: len(weights) // 2])
    done = draftsmith("verify", tmp_path)
    assert done.code == 2
    assert "cannot be read as an exported drafter" in done.err
    save_file(load_file(exported / "model.safetensors"), tmp_path / "model.safetensors")
    (tmp_path / "README.md").unlink()
    done = draftsmith("verify", tmp_path)
    assert done.code == 2
    assert "give it with --target" in done.err
