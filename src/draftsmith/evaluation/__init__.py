"""Does it pay: lossless speculative decoding, acceptance, proof of equality, speed and what it could be."""

from draftsmith.evaluation.acceptance import Acceptance, acceptance_of
from draftsmith.evaluation.cost import Costs, Prediction, best, if_verifying_were_free, measure_costs, predict
from draftsmith.evaluation.during_training import ServedAcceptance, measure_during_training
from draftsmith.evaluation.lossless import num_own
from draftsmith.evaluation.measure import Decoding, measure_sets, prompt_seed
from draftsmith.evaluation.prompts import MissingPackage, chat_prompt, file_prompts, gsm8k_prompts, humaneval_prompts
from draftsmith.evaluation.rule import Rule
from draftsmith.evaluation.servers import Engine, Served, measure_server
from draftsmith.evaluation.speculate import Decoded, Step, check_fit, speculate, steps
from draftsmith.evaluation.speed import Speed, measure_speed
from draftsmith.evaluation.walk import walk

__all__ = [
    "Acceptance",
    "Costs",
    "Decoded",
    "Decoding",
    "Engine",
    "MissingPackage",
    "Prediction",
    "Rule",
    "Served",
    "ServedAcceptance",
    "Speed",
    "Step",
    "acceptance_of",
    "best",
    "chat_prompt",
    "check_fit",
    "file_prompts",
    "gsm8k_prompts",
    "humaneval_prompts",
    "if_verifying_were_free",
    "measure_costs",
    "measure_during_training",
    "measure_server",
    "measure_sets",
    "measure_speed",
    "num_own",
    "predict",
    "prompt_seed",
    "speculate",
    "steps",
    "walk",
]
