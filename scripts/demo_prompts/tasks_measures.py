"""Python problems of everyday calculation: dates, units, prices, areas, marks."""

from __future__ import annotations

from demo_prompts.task import Knob, Task

COUNT = Knob("count", "int", (3, 4, 5, 6))

TASKS = (
    Task(
        "is_leap_year leap",
        "year:int",
        "bool",
        ("Return True if year is a leap year.", "Check if year is a leap year."),
        lambda y: y % 4 == 0 and (y % 100 != 0 or y % 400 == 0),
    ),
    Task(
        "to_fahrenheit celsius_to_fahrenheit",
        "celsius:float",
        "float",
        ("Convert a temperature from degrees Celsius to Fahrenheit.", "Return celsius in degrees Fahrenheit."),
        lambda c: c * 9 / 5 + 32,
    ),
    Task(
        "to_seconds minutes_to_seconds",
        "minutes:int seconds:int",
        "int",
        ("Return the total number of seconds.", "Convert minutes and seconds to seconds."),
        lambda m, s: 60 * m + s,
    ),
    Task(
        "format_minutes as_hours",
        "minutes:int",
        "str",
        ("Format minutes as hours and minutes, like '2h 5m'.",),
        lambda m: f"{m // 60}h {m % 60}m",
    ),
    Task(
        "price_with_tax add_tax",
        "price:float",
        "float",
        ("Return the price with a tax of {percent} percent added, rounded to 2 decimals.",),
        lambda p, k: round(p * (100 + k) / 100, 2),
        Knob("percent", "int", (5, 8, 10, 20, 25)),
    ),
    Task(
        "discounted reduce_price",
        "price:float",
        "float",
        ("Return the price after a discount of {percent} percent, rounded to 2 decimals.",),
        lambda p, k: round(p * (100 - k) / 100, 2),
        Knob("percent", "int", (5, 10, 15, 20, 50)),
    ),
    Task(
        "rectangle_area area_of",
        "width:float height:float",
        "float",
        ("Return the area of a rectangle.", "Compute the area of a rectangle with the given sides."),
        lambda a, b: a * b,
    ),
    Task(
        "rectangle_perimeter perimeter",
        "width:float height:float",
        "float",
        ("Return the perimeter of a rectangle.", "Compute the length around a rectangle."),
        lambda a, b: 2 * (a + b),
    ),
    Task(
        "larger_of max_of_two",
        "a:int b:int",
        "int",
        ("Return the larger of a and b.", "Return a if it is greater than b, otherwise b."),
        max,
    ),
    Task(
        "distance_between gap",
        "a:int b:int",
        "int",
        ("Return the distance between a and b on the number line.", "Compute the absolute difference of a and b."),
        lambda a, b: abs(a - b),
    ),
    Task(
        "lowest_common_multiple common_multiple",
        "a:int b:int",
        "int",
        ("Return the smallest positive number that both a and b divide.",),
        lambda a, b: next(m for m in range(a, a * b + 1, a) if m % b == 0),
    ),
    Task(
        "average_of_three mean_of_three",
        "a:int b:int c:int",
        "float",
        ("Return the average of a, b and c, rounded to 1 decimal.",),
        lambda a, b, c: round((a + b + c) / 3, 1),
    ),
    Task(
        "boxes_needed num_boxes",
        "items:int",
        "int",
        ("Return how many boxes are needed if each box holds {size} items.",),
        lambda n, k: -(-n // k),
        Knob("size", "int", (4, 6, 8, 10, 12)),
    ),
    Task(
        "grade_of pass_or_fail",
        "score:int",
        "str",
        ("Return 'pass' if the score is at least {minimum}, otherwise 'fail'.",),
        lambda n, k: "pass" if n >= k else "fail",
        Knob("minimum", "int", (10, 30, 50, 60)),
    ),
    Task(
        "sign_of describe_sign",
        "a:int b:int",
        "str",
        ("Return 'less', 'equal' or 'greater', depending on how a compares to b.",),
        lambda a, b: "less" if a < b else "greater" if a > b else "equal",
    ),
    Task(
        "triangular_number staircase_blocks",
        "rows:int",
        "int",
        ("Return how many blocks a staircase has whose rows hold 1, 2, 3 and so on blocks.",),
        lambda n: n * (n + 1) // 2,
    ),
    Task(
        "sequence_doubling double_until",
        "start:int",
        "List[int]",
        ("Return start and the numbers got by doubling it, {count} numbers in all.",),
        lambda n, k: [n * 2**i for i in range(k)],
        COUNT,
    ),
    Task(
        "number_stars star_line",
        "int",
        "str",
        ("Return a string of that many stars, but at most {upper}.",),
        lambda n, k: "*" * min(n, k),
        Knob("upper", "int", (5, 8, 10, 12)),
    ),
)
