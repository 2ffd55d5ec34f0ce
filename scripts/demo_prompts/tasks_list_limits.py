"""Python problems over a list of numbers and one constant: limits, multiples, factors, slices."""

from __future__ import annotations

from demo_prompts.task import Knob, Task

LIMIT = Knob("limit", "int", (2, 3, 5, 7, 10, 12))
SMALL = Knob("k", "int", (2, 3, 4))
FACTOR = Knob("factor", "int", (2, 3, 4, 5, 10))

TASKS = (
    Task(
        "count_above count_larger",
        "ints",
        "int",
        ("Count the numbers greater than {limit}.", "Return how many numbers in the list are greater than {limit}."),
        lambda xs, k: sum(x > k for x in xs),
        LIMIT,
    ),
    Task(
        "keep_above filter_above",
        "ints",
        "List[int]",
        ("Return the numbers that are greater than {limit}.", "Keep only the numbers above {limit}, in order."),
        lambda xs, k: [x for x in xs if x > k],
        LIMIT,
    ),
    Task(
        "sum_below total_below",
        "ints",
        "int",
        ("Return the sum of all numbers less than {limit}.", "Add up the numbers that are smaller than {limit}."),
        lambda xs, k: sum(x for x in xs if x < k),
        LIMIT,
    ),
    Task(
        "keep_multiples select_multiples",
        "ints",
        "List[int]",
        ("Return the numbers that are divisible by {k}.", "Keep only the multiples of {k}."),
        lambda xs, k: [x for x in xs if x % k == 0],
        SMALL,
    ),
    Task(
        "drop_multiples without_multiples",
        "ints",
        "List[int]",
        ("Remove every number that is divisible by {k}.", "Return the list without the multiples of {k}."),
        lambda xs, k: [x for x in xs if x % k],
        SMALL,
    ),
    Task(
        "scale_all multiply_each",
        "ints",
        "List[int]",
        ("Multiply every number by {factor}.", "Return a new list with each number multiplied by {factor}."),
        lambda xs, k: [x * k for x in xs],
        FACTOR,
    ),
    Task(
        "shift_down subtract_from_each",
        "ints",
        "List[int]",
        ("Subtract {limit} from every number in the list.", "Return a list with {limit} subtracted from each number."),
        lambda xs, k: [x - k for x in xs],
        LIMIT,
    ),
    Task(
        "cap_values clip_high",
        "ints",
        "List[int]",
        ("Replace every number above {limit} by {limit}.", "Return the list with all numbers capped at {limit}."),
        lambda xs, k: [min(x, k) for x in xs],
        LIMIT,
    ),
    Task(
        "any_above has_large",
        "ints",
        "bool",
        (
            "Check if at least one number is greater than {limit}.",
            "Return True if any number is above {limit}, else False.",
        ),
        lambda xs, k: any(x > k for x in xs),
        LIMIT,
    ),
    Task(
        "all_at_least none_smaller",
        "ints",
        "bool",
        ("Check if every number is at least {limit}.", "Return True if no number is smaller than {limit}."),
        lambda xs, k: all(x >= k for x in xs),
        Knob("limit", "int", (-5, -3, 0, 1)),
    ),
    Task(
        "every_kth take_every",
        "ints",
        "List[int]",
        (
            "Return every {k}th element, starting with the first.",
            "Take the first element and every {k}th one after it.",
        ),
        lambda xs, k: xs[::k],
        Knob("k", "int", (4, 5, 6)),
    ),
    Task(
        "first_items take_first",
        "ints",
        "List[int]",
        ("Return the first {k} elements of the list.", "Take the first {k} numbers."),
        lambda xs, k: xs[:k],
        SMALL,
    ),
    Task(
        "last_items take_last",
        "ints",
        "List[int]",
        ("Return the last {k} elements of the list.", "Take the last {k} numbers."),
        lambda xs, k: xs[-k:],
        SMALL,
    ),
    Task(
        "smallest_items lowest_values",
        "ints",
        "List[int]",
        ("Return the {k} smallest numbers in ascending order.", "Find the {k} lowest values, sorted."),
        lambda xs, k: sorted(xs)[:k],
        SMALL,
    ),
    Task(
        "chunk_list split_in_chunks",
        "ints",
        "List[List[int]]",
        (
            "Split the list into chunks of length {k}.",
            "Cut the list into pieces of {k} elements; the last may be shorter.",
        ),
        lambda xs, k: [xs[i : i + k] for i in range(0, len(xs), k)],
        SMALL,
    ),
)
