"""Arithmetic word problems of one to three steps, with whole-number answers."""

from __future__ import annotations

import random
from collections.abc import Iterator

from demo_prompts.mixing import words

NAMES = words("Mia Tom Lena Omar Sara Ben Priya Jack Nina Carlos Emma Leo Aisha Paul Grace Ivan Rosa Sam Zoe Hugo")
THINGS = words("apples pencils stickers marbles books cookies shells cards oranges stamps balloons buttons")
SHOPS = (("notebook", 3), ("sandwich", 5), ("ticket", 8), ("shirt", 12), ("plant", 6), ("mug", 7), ("toy car", 4))
VESSELS = (("box", "boxes"), ("bag", "bags"), ("basket", "baskets"), ("shelf", "shelves"), ("tray", "trays"))
TEMPLATES = (
    "{a} has {big} {things}. {a} gives {small} {things} to {b}. How many {things} does {a} have left?",
    "{a} has {n} {vessels} with {m} {things} in each {vessel}. How many {things} does {a} have in total?",
    "{a} has {big} {things} and {b} has {small} more than {a}. How many {things} do they have together?",
    "A {item} costs {price} dollars. {a} buys {n} of them and pays with {money} dollars. How much change does {a} get?",
    "{a} shares {product} {things} equally among {n} friends. How many {things} does each friend get?",
    "{a} reads {m} pages every day. How many pages does {a} read in {n} weeks?",
    "{a} saves {m} dollars a week. After {n} weeks, {a} spends {small} dollars. How much money is left?",
    "A train travels {speed} kilometers per hour. How far does it go in {n} hours?",
    "{a} picks {big} {things} in the morning and {m} in the afternoon. "
    "Then {a} puts all of them into {vessels} and eats {small}. How many {things} are left?",
    "There are {n} rows of {m} chairs in a hall. {small} chairs are broken. How many chairs can be used?",
    "{a} is {m} years old. {b} is {n} years older than {a}. How old will {b} be in {small} years?",
    "A class has {big} students. {small} of them are absent today. "
    "The others each bring {n} {things}. How many {things} is that?",
    "{a} earns {price} dollars per hour and works {n} hours a day. How much does {a} earn in {small} days?",
    "A baker makes {m} loaves each day and sells {small} of them. How many loaves are left over after {n} days?",
    "{a} buys a {item} for {price} dollars and {n} {things} for 2 dollars each. How much does {a} pay?",
    "A tank holds {product} liters of water. Each minute {m} liters run out. After how many minutes is it empty?",
    "{a} walks {n} kilometers to school and the same way back. How many kilometers does {a} walk in {small} days?",
    "{a} has twice as many {things} as {b}. {b} has {big} {things}. How many do they have together?",
    "A recipe for {n} people needs {product} grams of flour. How many grams are needed for one person?",
    "{a} had {big} {things}, lost {small} of them, and then found {n}. How many {things} does {a} have now?",
)
ENDINGS = ("", "", " Show your steps.", " Think step by step and keep it short.", " Give the answer in one sentence.")


def problems(rng: random.Random) -> Iterator[str]:
    """Endless; each template comes once before any comes again."""
    while True:
        for template in rng.sample(TEMPLATES, len(TEMPLATES)):
            yield filled(template, rng) + rng.choice(ENDINGS)


def filled(template: str, rng: random.Random) -> str:
    """`small` is below `m` and `big`, `product` is `n` times `m`, and `money` pays for `n` items."""
    a, b = rng.sample(NAMES, 2)
    item, price = rng.choice(SHOPS)
    vessel, vessels = rng.choice(VESSELS)
    n, m = rng.randint(2, 9), rng.randint(10, 25)
    return template.format(
        a=a, b=b, item=item, price=price, vessel=vessel, vessels=vessels, n=n, m=m, product=n * m,
        small=rng.randint(2, 9), big=rng.randint(20, 60), speed=10 * rng.randint(5, 15),
        things=rng.choice(THINGS), money=-(-n * price // 10) * 10 + 10,
    )  # fmt: skip
