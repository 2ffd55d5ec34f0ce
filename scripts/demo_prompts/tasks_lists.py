"""Python problems over lists of numbers: maps, sums, order, pairs of lists."""

from __future__ import annotations

from itertools import pairwise

from demo_prompts.task import Knob, Task

LIMIT = Knob("limit", "int", (2, 3, 5, 7, 10, 12))
SMALL = Knob("k", "int", (2, 3, 4))

TASKS = (
    Task(
        "sum_of_negatives add_negatives",
        "ints",
        "int",
        ("Return the sum of the negative numbers.", "Add up all numbers below zero."),
        lambda xs: sum(x for x in xs if x < 0),
    ),
    Task(
        "count_even how_many_even",
        "ints",
        "int",
        ("Count the even numbers in the list.", "Return how many numbers are even."),
        lambda xs: sum(x % 2 == 0 for x in xs),
    ),
    Task(
        "odd_only keep_odd",
        "ints",
        "List[int]",
        ("Return only the odd numbers, in their order.", "Keep the odd numbers of the list."),
        lambda xs: [x for x in xs if x % 2],
    ),
    Task(
        "square_all squares_of",
        "ints",
        "List[int]",
        ("Return the square of each number.", "Replace each number by its square."),
        lambda xs: [x * x for x in xs],
    ),
    Task(
        "absolute_values make_absolute",
        "ints",
        "List[int]",
        ("Return the absolute value of each number.", "Replace each number by its absolute value."),
        lambda xs: [abs(x) for x in xs],
    ),
    Task(
        "value_range spread",
        "ints",
        "int",
        (
            "Return the difference between the largest and the smallest number.",
            "Compute the maximum minus the minimum of the list.",
        ),
        lambda xs: max(xs) - min(xs),
    ),
    Task(
        "running_sum cumulative_sum",
        "ints",
        "List[int]",
        ("Return the running totals of the list.", "Compute the cumulative sums of the numbers."),
        lambda xs: [sum(xs[: i + 1]) for i in range(len(xs))],
    ),
    Task(
        "differences step_sizes",
        "ints",
        "List[int]",
        ("Return the differences between neighbouring numbers.", "Compute each number minus the one before it."),
        lambda xs: [b - a for a, b in pairwise(xs)],
    ),
    Task(
        "index_of_max position_of_largest",
        "ints",
        "int",
        ("Return the index of the largest number.", "Find the position of the first maximum."),
        lambda xs: xs.index(max(xs)),
    ),
    Task(
        "second_largest runner_up",
        "ints",
        "int",
        ("Return the second largest distinct number.", "Find the second highest value of the list, without repeats."),
        lambda xs: sorted(set(xs))[-2],
    ),
    Task(
        "swap_ends exchange_ends",
        "ints",
        "List[int]",
        ("Return the list with its first and last element swapped.", "Swap the first and the last element."),
        lambda xs: [xs[-1], *xs[1:-1], xs[0]],
    ),
    Task(
        "sort_descending largest_first",
        "ints",
        "List[int]",
        ("Return the numbers sorted from largest to smallest.", "Sort the list in descending order."),
        lambda xs: sorted(xs, reverse=True),
    ),
    Task(
        "sort_by_distance nearest_first",
        "ints",
        "List[int]",
        (
            "Sort the numbers by their distance to {limit}.",
            "Return the numbers ordered by how close they are to {limit}.",
        ),
        lambda xs, k: sorted(xs, key=lambda x: abs(x - k)),
        LIMIT,
    ),
    Task(
        "has_repeats contains_duplicates",
        "ints",
        "bool",
        ("Check if any number appears more than once.", "Return True if the list has duplicates."),
        lambda xs: len(set(xs)) < len(xs),
    ),
    Task(
        "pairwise_sums add_lists",
        "first:ints second:ints",
        "List[int]",
        ("Add the numbers of two lists, element by element.", "Return the sums of the elements at equal positions."),
        lambda a, b: [x + y for x, y in zip(a, b, strict=False)],
    ),
    Task(
        "missing_from only_in_first",
        "first:ints second:ints",
        "List[int]",
        ("Return the numbers of first that are not in second.", "Find all elements of first which second lacks."),
        lambda a, b: [x for x in a if x not in b],
    ),
    Task(
        "interleave_lists alternate",
        "first:ints second:ints",
        "List[int]",
        ("Return a list that takes elements from first and second in turn, up to the shorter one.",),
        lambda a, b: [x for pair in zip(a, b, strict=False) for x in pair],
    ),
    Task(
        "average_value mean_of",
        "floats",
        "float",
        (
            "Return the mean of the values, rounded to 2 decimals.",
            "Compute the average, rounded to two decimal places.",
        ),
        lambda xs: round(sum(xs) / len(xs), 2),
    ),
    Task(
        "sum_of_squares_of squared_total",
        "ints",
        "int",
        ("Return the sum of the squares of all numbers.", "Add up the squared numbers."),
        lambda xs: sum(x * x for x in xs),
    ),
    Task(
        "count_sign_changes sign_flips",
        "ints",
        "int",
        ("Count how often neighbouring numbers have different signs, with zero counted as positive.",),
        lambda xs: sum((a < 0) != (b < 0) for a, b in pairwise(xs)),
    ),
    Task(
        "rotate_left turn_left",
        "ints",
        "List[int]",
        ("Rotate the list to the left by {k} places.", "Move the first {k} elements to the end of the list."),
        lambda xs, k: xs[k % len(xs) :] + xs[: k % len(xs)],
        SMALL,
    ),
    Task(
        "repeat_each duplicate_items",
        "ints",
        "List[int]",
        ("Repeat every element {k} times.", "Return a list in which each element appears {k} times in a row."),
        lambda xs, k: [x for x in xs for _ in range(k)],
        Knob("k", "int", (2, 3)),
    ),
    Task(
        "remove_value without_value",
        "ints",
        "List[int]",
        ("Remove every occurrence of {unwanted}.", "Return the list without the number {unwanted}."),
        lambda xs, k: [x for x in xs if x != k],
        Knob("unwanted", "int", (0, 1, 2, 3, 4, 5)),
    ),
)
