"""Random access and resuming: every step is reachable, and nothing that changed goes unnoticed."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
from plan_vectors import LENGTHS

from draftsmith.errors import PlanError
from draftsmith.plan import PlanSettings, Position, build_plan, position_of, resume_plan

SETTINGS = PlanSettings(max_tokens=4096, num_buckets=4)


@pytest.mark.parametrize("batching", ["bucketed", "packed"])
def test_a_small_plan_resumes_from_every_step(batching: str) -> None:
    settings = PlanSettings(max_tokens=4096, num_buckets=3, batching=batching)
    lengths = LENGTHS[:150]
    plan = build_plan(lengths, settings, seed=3, epoch=2)
    whole = [(batch.seq, batch.bucket, batch.samples.tolist(), batch.padded_length) for batch in plan]
    for step in range(plan.num_batches + 1):
        saved = json.loads(json.dumps(position_of(plan, step).as_dict()))
        position = Position(**saved)
        resumed = resume_plan(lengths, settings, position)
        rest = [(b.seq, b.bucket, b.samples.tolist(), b.padded_length) for b in resumed.from_step(position.step)]
        assert rest == whole[step:]


def test_reading_one_step_gives_what_iterating_gives() -> None:
    plan = build_plan(LENGTHS, SETTINGS, seed=0)
    for batch in plan:
        assert plan.batch(batch.seq).samples.tolist() == batch.samples.tolist()
        assert batch.epoch == 0


@pytest.mark.parametrize(
    ("lengths", "settings", "message"),
    [
        (LENGTHS, PlanSettings(max_tokens=8192, num_buckets=4), r"batching.max_tokens was 4096 and is now 8192"),
        (LENGTHS, PlanSettings(max_tokens=4096, num_buckets=4, order="shuffle"), r"batching.order was 'quota'"),
        (LENGTHS[:-1], SETTINGS, r"saved over 3000 samples, now there are 2999"),
        (LENGTHS[::-1], SETTINGS, r"lengths of the 3000 samples are not those"),
    ],
)
def test_a_resume_that_changed_is_refused_and_the_difference_named(
    lengths: np.ndarray, settings: PlanSettings, message: str
) -> None:
    position = position_of(build_plan(LENGTHS, SETTINGS, seed=1), 5)
    with pytest.raises(PlanError, match=message):
        resume_plan(lengths, settings, position)


def test_a_damaged_or_foreign_position_is_refused() -> None:
    saved = position_of(build_plan(LENGTHS, SETTINGS, seed=1), 5).as_dict()
    for changed, message in [
        ({"plan_sha256": "0" * 64}, "damaged"),
        ({"version": 99}, "plan version 99"),
        ({"step": 10**6}, "step 1000000 of an epoch"),
    ]:
        with pytest.raises(PlanError, match=message):
            resume_plan(LENGTHS, SETTINGS, Position(**{**saved, **changed}))


def test_the_hash_changes_with_everything_that_matters_and_with_nothing_else() -> None:
    plan = build_plan(LENGTHS, SETTINGS, seed=1)
    assert build_plan(LENGTHS.tolist(), SETTINGS, seed=1).sha256 == plan.sha256
    others = [
        build_plan(LENGTHS, SETTINGS, seed=2),
        build_plan(LENGTHS, SETTINGS, seed=1, epoch=1),
        build_plan(LENGTHS + 1, SETTINGS, seed=1),
        build_plan(LENGTHS, PlanSettings(max_tokens=4096, num_buckets=4, max_rows=4096), seed=1),
    ]
    assert len({plan.sha256, *(other.sha256 for other in others)}) == 5


def test_planning_imports_neither_torch_nor_pydantic() -> None:
    program = (
        "import sys; import draftsmith.plan; print([m for m in ('torch', 'pydantic', 'numba') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_plan_cannot_be_written_to() -> None:
    plan = build_plan(LENGTHS, SETTINGS, seed=0)
    with pytest.raises(ValueError, match="read-only"):
        plan.batch(0).samples[0] = 1
