"""Python problems over text and one constant: a letter, an ending, a length, a separator."""

from __future__ import annotations

from demo_prompts.task import Knob, Task

LETTER = Knob("char", "str", ("a", "e", "i", "n", "o", "r", "t"))
LENGTH = Knob("length", "int", (3, 4, 5, 6))
TIMES = Knob("times", "int", (2, 3))
SEPARATOR = Knob("separator", "str", ("-", "_", "/", ", ", "+"))
ENDING = Knob("suffix", "str", ("e", "r", "n", "er", "et", "t"))

TASKS = (
    Task(
        "count_letter letter_count",
        "text",
        "int",
        ("Count how often the letter {char} occurs in the text.", "Return the number of times {char} appears."),
        lambda s, c: s.count(c),
        LETTER,
    ),
    Task(
        "remove_letter drop_letter",
        "text",
        "str",
        ("Remove every {char} from the text.", "Return the text without the letter {char}."),
        lambda s, c: s.replace(c, ""),
        LETTER,
    ),
    Task(
        "mask_letter hide_letter",
        "text",
        "str",
        ("Replace every {char} by a star.", "Return the text with each {char} replaced by '*'."),
        lambda s, c: s.replace(c, "*"),
        LETTER,
    ),
    Task(
        "words_with_letter contains_letter",
        "words",
        "List[str]",
        ("Return the words that contain the letter {char}.", "Keep only words with the letter {char} in them."),
        lambda ws, c: [w for w in ws if c in w],
        LETTER,
    ),
    Task(
        "words_without_letter avoid_letter",
        "words",
        "List[str]",
        ("Return the words that do not contain the letter {char}.",),
        lambda ws, c: [w for w in ws if c not in w],
        LETTER,
    ),
    Task(
        "words_ending_with filter_by_ending",
        "words",
        "List[str]",
        ("Return the words that end with {suffix}.", "Keep only words whose ending is {suffix}."),
        lambda ws, e: [w for w in ws if w.endswith(e)],
        ENDING,
    ),
    Task(
        "count_endings num_with_ending",
        "words",
        "int",
        ("Count the words that end with {suffix}.",),
        lambda ws, e: sum(w.endswith(e) for w in ws),
        ENDING,
    ),
    Task(
        "long_words longer_than",
        "words",
        "List[str]",
        ("Return the words with more than {length} letters.", "Keep only words longer than {length} characters."),
        lambda ws, k: [w for w in ws if len(w) > k],
        LENGTH,
    ),
    Task(
        "count_short_words num_short",
        "words",
        "int",
        ("Count the words that have at most {length} letters.", "Return how many words are not longer than {length}."),
        lambda ws, k: sum(len(w) <= k for w in ws),
        LENGTH,
    ),
    Task(
        "shorten_words cut_words",
        "words",
        "List[str]",
        ("Return the first {length} letters of each word.", "Cut every word after {length} letters."),
        lambda ws, k: [w[:k] for w in ws],
        LENGTH,
    ),
    Task(
        "pad_right fill_with_dots",
        "word",
        "str",
        ("Return the word, filled up with dots to a length of {width}.",),
        lambda s, k: s.ljust(k, "."),
        Knob("width", "int", (7, 8, 10)),
    ),
    Task(
        "repeat_word say_again",
        "word",
        "str",
        ("Return the word {times} times, separated by spaces.",),
        lambda s, k: " ".join([s] * k),
        TIMES,
    ),
    Task(
        "repeat_letters stretch_word",
        "word",
        "str",
        ("Repeat each letter of the word {times} times.",),
        lambda s, k: "".join(c * k for c in s),
        TIMES,
    ),
    Task(
        "join_words glue_words",
        "words",
        "str",
        ("Join the words with {separator} between them.", "Return one string with the words separated by {separator}."),
        lambda ws, s: s.join(ws),
        SEPARATOR,
    ),
    Task(
        "replace_spaces spaces_to",
        "text",
        "str",
        ("Replace every space by {separator}.", "Return the text with {separator} in place of each space."),
        lambda s, k: s.replace(" ", k),
        SEPARATOR,
    ),
)
