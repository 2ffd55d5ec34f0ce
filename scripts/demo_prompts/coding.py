"""The two Python kinds: complete a function from signature, docstring and doctests; write a function from words."""

from __future__ import annotations

import random
from collections.abc import Iterator

from demo_prompts import (
    tasks_list_limits,
    tasks_lists,
    tasks_measures,
    tasks_numbers,
    tasks_tables,
    tasks_text,
    tasks_text_parts,
)
from demo_prompts.mixing import crossed
from demo_prompts.phrases import FUNCTIONS_IN_WORDS
from demo_prompts.task import Task, draw

TASKS: tuple[Task, ...] = (
    *tasks_list_limits.TASKS,
    *tasks_lists.TASKS,
    *tasks_numbers.TASKS,
    *tasks_measures.TASKS,
    *tasks_tables.TASKS,
    *tasks_text_parts.TASKS,
    *tasks_text.TASKS,
)

COMPLETE = (
    "Complete this Python function.",
    "Complete the following Python function.",
    "Complete this Python function. Reply with the code only.",
    "Complete the function below.",
    "Finish this Python function so that the examples hold.",
    "Implement this Python function.",
)
WRITE = (
    "Write a Python function that {}.",
    "Write a short Python function that {}.",
    "In Python, write a function that {}. Show only the code.",
    "Give me a Python function that {}.",
)
MAX_CHARS = 1000
THIRD_PERSON = {"Multiply": "multiplies", "Check": "checks", "Replace": "replaces"}


def complete(rng: random.Random) -> Iterator[str]:
    """Instruction, blank line, fenced block with a signature and a docstring; every expected output is evaluated."""
    choices = {id(task): task.choices(rng) for task in TASKS}
    while True:
        for task in rng.sample(TASKS, len(TASKS)):
            name, sentence, bound = next(choices[id(task)])
            stub = draw(task, name, sentence, bound, rng)
            prompt = f"{rng.choice(COMPLETE)}\n\n```python\n{stub}```"
            if len(prompt) <= MAX_CHARS:
                yield prompt


def write(rng: random.Random) -> Iterator[str]:
    """Own phrases and the docstrings' sentences in turn, until both are used up."""
    spoken = [spoken_form(task, rng) for _ in range(3) for task in TASKS]
    own = crossed(rng, WRITE, FUNCTIONS_IN_WORDS)
    derived = crossed(rng, WRITE, sorted(set(spoken)))
    for first, second in zip(own, derived, strict=False):
        for template, phrase in (first, second):
            yield template.format(phrase)
    for template, phrase in derived:
        yield template.format(phrase)


def spoken_form(task: Task, rng: random.Random) -> str:
    """The sentence of a docstring, as the end of 'a function that ...'."""
    _, sentence, _ = next(task.choices(rng, bound_only=True))
    verb, _, rest = sentence.rstrip(".").partition(" ")
    return f"{THIRD_PERSON.get(verb, verb.lower() + 's')} {rest}"
