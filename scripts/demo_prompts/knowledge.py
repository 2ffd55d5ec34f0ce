"""Kinds that ask for knowledge: explain a concept, list a few things, compare two things."""

from __future__ import annotations

import random
from collections.abc import Iterator

from demo_prompts.mixing import crossed
from demo_prompts.topics import COMPARISONS, CONCEPTS, LISTINGS

EXPLAIN = (
    "Explain in two sentences what {} is.",
    "What is {}? Answer in two or three sentences.",
    "Briefly explain {} to a beginner.",
    "Define {} in one short paragraph.",
)
LIST = (
    "List five {}.",
    "Name three {}.",
    "Give me a short list of five {}.",
    "What are four {}? Answer with a list, without explanations.",
)
COMPARE = (
    "What is the difference between {} and {}? Answer in two or three sentences.",
    "Briefly compare {} and {}.",
    "Explain the difference between {} and {} in simple words.",
)


def explain(rng: random.Random) -> Iterator[str]:
    return (template.format(topic) for template, topic in crossed(rng, EXPLAIN, CONCEPTS))


def listing(rng: random.Random) -> Iterator[str]:
    return (template.format(topic) for template, topic in crossed(rng, LIST, LISTINGS))


def compare(rng: random.Random) -> Iterator[str]:
    return (template.format(*pair.split(" / ")) for template, pair in crossed(rng, COMPARE, COMPARISONS))
