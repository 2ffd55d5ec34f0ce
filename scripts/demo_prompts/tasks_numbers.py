"""Python problems over whole numbers: multiples, sequences, digits, divisors."""

from __future__ import annotations

from math import prod

from demo_prompts.task import Knob, Task

DIVISOR = Knob("divisor", "int", (2, 3, 4, 5, 6, 7, 9))
COUNT = Knob("count", "int", (3, 4, 5, 6))

TASKS = (
    Task(
        "is_divisible divides_evenly",
        "int",
        "bool",
        ("Check if the number is divisible by {divisor}.", "Return True if {divisor} divides the number."),
        lambda n, k: n % k == 0,
        DIVISOR,
    ),
    Task(
        "remainder_of leftover",
        "int",
        "int",
        ("Return the remainder of the number after division by {divisor}.",),
        lambda n, k: n % k,
        DIVISOR,
    ),
    Task(
        "round_up_to next_multiple",
        "int",
        "int",
        (
            "Round the number up to the next multiple of {divisor}.",
            "Return the smallest multiple of {divisor} that is not below the number.",
        ),
        lambda n, k: -(-n // k) * k,
        DIVISOR,
    ),
    Task(
        "first_multiples multiples_of",
        "int",
        "List[int]",
        (
            "Return the first {count} multiples of the number.",
            "List {count} multiples of the number, from small to large.",
        ),
        lambda n, k: [n * i for i in range(1, k + 1)],
        COUNT,
    ),
    Task(
        "power_list powers_of",
        "base:int",
        "List[int]",
        ("Return the powers of base from 1 to {count}.",),
        lambda n, k: [n**i for i in range(1, k + 1)],
        Knob("count", "int", (2, 3)),
    ),
    Task(
        "count_down descending_from",
        "int",
        "List[int]",
        ("Return the {count} numbers that come before the given one, in descending order.",),
        lambda n, k: [n - i for i in range(1, k + 1)],
        COUNT,
    ),
    Task(
        "arithmetic_sequence even_steps",
        "start:int",
        "List[int]",
        ("Return {count} numbers, beginning with start, each 5 larger than the one before.",),
        lambda n, k: [n + 5 * i for i in range(k)],
        COUNT,
    ),
    Task(
        "clamp_number keep_in_range",
        "int",
        "int",
        (
            "Return the number, but at least 10 and at most {upper}.",
            "Limit the number to the range from 10 to {upper}.",
        ),
        lambda n, k: max(10, min(n, k)),
        Knob("upper", "int", (20, 50, 99, 100)),
    ),
    Task(
        "sum_of_evens add_evens",
        "int",
        "int",
        ("Return the sum of all even numbers from 2 up to the given number.",),
        lambda n: sum(range(2, n + 1, 2)),
    ),
    Task(
        "sum_of_multiples add_multiples",
        "int",
        "int",
        ("Add all multiples of {divisor} that are below the number.",),
        lambda n, k: sum(range(k, n, k)),
        DIVISOR,
    ),
    Task(
        "count_digits num_digits",
        "int",
        "int",
        ("Count the digits of the number.", "Return how many digits the number has."),
        lambda n: len(str(n)),
    ),
    Task(
        "reverse_digits turn_number_around",
        "int",
        "int",
        ("Return the number with its digits in reverse order.", "Reverse the digits of the number."),
        lambda n: int(str(n)[::-1]),
    ),
    Task(
        "digit_product multiply_digits",
        "int",
        "int",
        ("Return the product of all digits of the number.", "Multiply the digits of the number."),
        lambda n: prod(map(int, str(n))),
    ),
    Task(
        "largest_digit highest_digit",
        "int",
        "int",
        ("Return the largest digit of the number.", "Find the highest digit in the number."),
        lambda n: max(map(int, str(n))),
    ),
    Task(
        "contains_digit has_digit",
        "int",
        "bool",
        (
            "Check if the digit {wanted} appears in the number.",
            "Return True if the number contains the digit {wanted}.",
        ),
        lambda n, k: str(k) in str(n),
        Knob("wanted", "int", (1, 2, 3, 5)),
    ),
    Task(
        "divisors_of all_divisors",
        "int",
        "List[int]",
        ("Return all divisors of the number in ascending order.", "List the numbers that divide the given one."),
        lambda n: [d for d in range(1, n + 1) if n % d == 0],
    ),
    Task(
        "num_divisors count_divisors",
        "int",
        "int",
        ("Count the divisors of the number.", "Return how many positive integers divide the number."),
        lambda n: sum(n % d == 0 for d in range(1, n + 1)),
    ),
    Task(
        "is_square perfect_square",
        "int",
        "bool",
        ("Check if the number is a perfect square.", "Return True if the number is the square of an integer."),
        lambda n: round(n**0.5) ** 2 == n,
    ),
    Task(
        "halve_until_odd odd_part",
        "int",
        "int",
        ("Divide the number by 2 until it is odd.", "Return the odd part of the number."),
        lambda n: n // (n & -n),
    ),
)
