"""A small Python problem as a noun (`Task`), and its drawing as source text with true doctests."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from demo_prompts.mixing import words

WORDS = words(
    "apple river stone cloud garden lemon train window paper orange silver market yellow bridge candle forest "
    "pencil rabbit winter button coffee dragon island kitten mirror pocket rocket ticket violin wallet bag sun "
    "tea map fox ant owl cup ink jar level noon radar kayak Bob Anna Berlin Rome Mars Ada Oslo Lima"
)
ARGUMENT_NAMES = {
    "ints": ("numbers", "values", "nums", "lst", "items"),
    "floats": ("values", "readings", "measurements", "numbers"),
    "words": ("words", "strings", "names", "tokens"),
    "text": ("text", "s", "sentence", "line"),
    "word": ("word", "s", "string", "name"),
    "int": ("n", "number", "value", "x"),
    "float": ("x", "amount", "value"),
    "table": ("scores", "prices", "counts", "stock"),
    "matrix": ("matrix", "grid", "rows"),
    "pairs": ("pairs", "points", "items"),
    "digits": ("s", "text", "code"),
}
HINTS = {
    "ints": "List[int]",
    "floats": "List[float]",
    "words": "List[str]",
    "text": "str",
    "word": "str",
    "int": "int",
    "float": "float",
    "table": "Dict[str, int]",
    "matrix": "List[List[int]]",
    "pairs": "List[Tuple[int, int]]",
    "digits": "str",
}


@dataclass(frozen=True)
class Knob:
    """A parameter of a task: a constant in the sentence, or one more argument of the function."""

    name: str
    hint: str
    values: tuple[object, ...]


@dataclass(frozen=True)
class Task:
    """`takes` lists kinds of arguments, with a name where the sentences use one: 'ints' or 'first:ints second:ints'.
    `solve` gets the arguments, then the knob's value. The sentences start with a verb and may use the knob as {name}.
    """

    names: str
    takes: str
    gives: str
    sentences: tuple[str, ...]
    solve: Callable[..., object]
    knob: Knob | None = None

    def choices(self, rng: random.Random, bound_only: bool = False) -> Iterator[tuple[str, str, object]]:
        """Endless (name, sentence, value of the knob, or None where it is an argument), each once before any again."""
        values: tuple[object, ...] = (None,)
        if self.knob:
            values = self.knob.values if bound_only else (*self.knob.values, None)
        options = list(itertools.product(self.names.split(), self.sentences, values))
        rng.shuffle(options)
        for name, sentence, value in itertools.cycle(options):
            if self.knob:
                filling = self.knob.name if value is None else repr(value)
                sentence = sentence.replace("{" + self.knob.name + "}", filling)
            yield name, sentence, value


def draw(task: Task, name: str, sentence: str, bound: object, rng: random.Random) -> str:
    """Source text: imports where needed, signature, docstring with one to three doctests."""
    arguments = [named(part, rng) for part in task.takes.split()]
    hints = [f"{argument}: {HINTS[kind]}" for argument, kind in arguments]
    if task.knob and bound is None:
        hints.append(f"{task.knob.name}: {task.knob.hint}")
    elif isinstance(bound, int) and rng.random() < 0.3:
        name = f"{name}_{bound}".replace("-", "minus_")
    signature = f"def {name}({', '.join(hints)}) -> {task.gives}:"
    header = ""
    if rng.random() < 0.6:
        used = [hint for hint in ("Dict", "List", "Tuple") if f"{hint}[" in signature]
        header = f"from typing import {', '.join(used)}\n\n\n" if used else ""
    else:
        for hint in ("Dict", "List", "Tuple"):
            signature = signature.replace(f"{hint}[", f"{hint.lower()}[")
    gap = rng.choice(("", " "))
    doctests = "".join(
        f"    >>> {name}({shown})\n    {output}\n"
        for shown, output in examples(task, [kind for _, kind in arguments], bound, rng)
    )
    return f'{header}{signature}\n    """{gap}{sentence}\n{doctests}    """\n'


def named(part: str, rng: random.Random) -> tuple[str, str]:
    name, _, kind = part.rpartition(":")
    return name or rng.choice(ARGUMENT_NAMES[kind]), kind


def examples(task: Task, kinds: list[str], bound: object, rng: random.Random) -> list[tuple[str, str]]:
    """One to three (arguments, output) as source text, with different outputs where a few tries find them."""
    num = rng.choice((1, 2, 2, 2, 3))
    found: dict[str, str] = {}
    for attempt in range(60):
        arguments = [sample(kind, rng) for kind in kinds]
        if found and attempt < 3 and rng.random() < 0.1 and isinstance(arguments[0], (list, str)):
            arguments[0] = type(arguments[0])()
        knob_value = bound
        if task.knob and bound is None:
            knob_value = rng.choice(task.knob.values)
            shown = ", ".join(map(repr, [*arguments, knob_value]))
        else:
            shown = ", ".join(map(repr, arguments))
        try:
            output = repr(task.solve(*arguments, *([knob_value] if task.knob else [])))
        except (ValueError, IndexError, ZeroDivisionError):
            continue  # not every task is defined for every drawn input
        dull = output in ("[]", "''", "{}", "0", "False") and not found
        repeated = output in found.values() or shown in found
        if len(output) > 80 or (attempt < 50 and (dull or repeated)):
            continue
        found[shown] = output
        if len(found) == num:
            break
    if not found:
        raise ValueError(f"task {task.names}: no example in 60 tries; widen what it accepts")
    return list(found.items())


def sample(kind: str, rng: random.Random) -> object:
    """A random argument of a kind, small enough to read."""
    word = rng.choice(WORDS)
    draws: dict[str, Callable[[], object]] = {
        "ints": lambda: [rng.randint(-9, 20) for _ in range(rng.randint(3, 6))],
        "floats": lambda: [rng.randint(2, 40) / 2 for _ in range(rng.randint(2, 5))],
        "words": lambda: rng.sample(WORDS, rng.randint(3, 5)),
        "text": lambda: " ".join(rng.sample(WORDS, rng.randint(2, 5))),
        "word": lambda: word,
        "int": lambda: rng.choice((rng.randint(1, 12), rng.randint(5, 60), rng.randint(50, 2000))),
        "float": lambda: rng.randint(2, 200) / 2,
        "table": lambda: {key: rng.randint(1, 15) for key in rng.sample(WORDS, rng.randint(2, 4))},
        "matrix": lambda: matrix(rng),
        "pairs": lambda: [(rng.randint(0, 9), rng.randint(0, 9)) for _ in range(rng.randint(2, 4))],
        "digits": lambda: "".join(rng.choice((word[:2], str(rng.randint(1, 99)))) for _ in range(rng.randint(2, 5))),
    }
    return draws[kind]()


def matrix(rng: random.Random) -> list[list[int]]:
    num_columns = rng.randint(2, 3)
    return [[rng.randint(0, 9) for _ in range(num_columns)] for _ in range(rng.randint(2, 3))]
