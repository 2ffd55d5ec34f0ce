"""Does it pay: lossless speculative decoding, acceptance, proof of equality, speed."""

from draftsmith.evaluation.acceptance import Acceptance, acceptance_of
from draftsmith.evaluation.lossless import num_greedy
from draftsmith.evaluation.measure import measure_sets
from draftsmith.evaluation.prompts import humaneval_prompts
from draftsmith.evaluation.speculate import Decoded, check_fit, speculate
from draftsmith.evaluation.speed import Speed, measure_speed
from draftsmith.evaluation.walk import walk

__all__ = [
    "Acceptance",
    "Decoded",
    "Speed",
    "acceptance_of",
    "check_fit",
    "humaneval_prompts",
    "measure_sets",
    "measure_speed",
    "num_greedy",
    "speculate",
    "walk",
]
