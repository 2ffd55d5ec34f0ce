"""Kinds that carry a small text: rewrite it, or summarize it. Texts are composed from sentence templates."""

from __future__ import annotations

import random
from collections.abc import Iterator

REWRITE = (
    "Rewrite this text in a more formal tone:\n\n{}",
    "Rewrite this text in simpler words:\n\n{}",
    "Rewrite the following text in the past tense:\n\n{}",
    "Correct and improve this text:\n\n{}",
    "Make this text shorter and friendlier:\n\n{}",
)
SUMMARIZE = (
    "Summarize this text in one sentence:\n\n{}",
    "What is the main point of this text? Answer in one sentence.\n\n{}",
    "Give a short title for this text:\n\n{}",
    "Summarize the following text in two short sentences:\n\n{}",
)
SLOTS = {
    "who": ("Anna", "Our neighbor", "The new teacher", "My brother", "The team", "A young farmer", "The manager",
            "My friend Leo", "The library", "A small company", "The mayor", "Grandma"),
    "place": ("the park", "the old market", "the harbor", "a small village", "the city center", "the school",
              "the train station", "the community garden", "the museum", "the riverside"),
    "day": ("Monday", "Tuesday", "Friday", "Saturday", "Sunday"),
    "hour": ("eight", "nine", "ten", "noon", "three", "five"),
    "thing": ("a bread oven", "a set of bicycles", "a weather station", "a vegetable stand", "a music stage",
              "a book exchange", "a repair shop", "a chess club", "a water pump", "a solar roof"),
    "reason": ("people asked for it", "the old one broke", "it saves money", "children enjoy it",
               "it brings neighbors together", "it is good for the environment"),
    "problem": ("heavy rain", "a lack of money", "a shortage of helpers", "a broken machine", "strong wind",
                "late deliveries"),
    "num": ("three", "five", "ten", "twelve", "twenty", "fifty"),
}  # fmt: skip
OPENINGS = (
    "{who} plans to open {thing} near {place} next {day}.",
    "{who} has worked on {thing} for {num} months.",
    "Every {day}, {who} meets {num} people at {place} to talk about {thing}.",
    "Last {day}, {who} showed {thing} to visitors at {place}.",
    "{who} wants to move {thing} from {place} to a larger building.",
)
MIDDLES = (
    "The work took longer than expected because of {problem}.",
    "About {num} volunteers helped, mostly because {reason}.",
    "Some people like the idea because {reason}, but others worry about {problem}.",
    "The work starts at {hour} and lasts about {num} hours.",
    "Visitors can come at {hour} and stay as long as they like.",
    "The cost is {num} dollars per visitor, and children come in free.",
)
CLOSINGS = (
    "The next meeting is on {day} at {hour}.",
    "In spite of {problem}, everyone is happy with the result.",
    "If all goes well, it will be finished in {num} weeks.",
    "Anyone who wants to help can come to {place} on {day}.",
    "Nobody knows yet what will happen next year.",
)
CASUAL = (
    "hey, the meeting on {day} is off because of {problem}, let's try {hour} on another day",
    "i can't come to {place} on {day}, something came up, sorry about that",
    "the report is late because of {problem} and i need {num} more days to finish it",
    "we got your order because of {problem} it will take {num} more days",
    "{who} was at {place} on {day} and did not see anyone, what happened?",
    "thanks for the help with {thing}, it went really well and {reason}",
    "can you send me the list for {thing} before {day}, i need it at {hour}",
    "please don't park in front of {place} on {day}, we need the space for {num} people",
)


def rewrite(rng: random.Random) -> Iterator[str]:
    """Endless: casual notes and composed texts of two sentences in turn."""
    while True:
        for template in rng.sample(REWRITE, len(REWRITE)):
            parts = rng.choice(((rng.choice(CASUAL),), (rng.choice(OPENINGS), rng.choice(MIDDLES))))
            yield template.format(text_of(parts, rng))


def summarize(rng: random.Random) -> Iterator[str]:
    """Endless: composed texts of four sentences."""
    while True:
        for template in rng.sample(SUMMARIZE, len(SUMMARIZE)):
            parts = (rng.choice(OPENINGS), *rng.sample(MIDDLES, 2), rng.choice(CLOSINGS))
            yield template.format(text_of(parts, rng))


def text_of(parts: tuple[str, ...], rng: random.Random) -> str:
    """The sentences with their slots filled; one draw for each sentence and slot, persons inside one in lower case."""
    sentences = []
    for part in parts:
        slots = {slot: rng.choice(fillings) for slot, fillings in SLOTS.items()}
        if not part.startswith("{who}") and slots["who"].split()[0] in {"Our", "The", "My", "A"}:
            slots["who"] = slots["who"][0].lower() + slots["who"][1:]
        sentences.append(part.format(**slots))
    return " ".join(sentences)
