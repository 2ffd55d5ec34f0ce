"""On GPUs what the other tests of this room show on processors: two GPUs train what one does, in whichever way."""

from __future__ import annotations

import pytest
import torch
from ranks import TWO, Train, assert_close, hash_of

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(600),
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices"),
]


@pytest.mark.parametrize(
    "settings", [[], ["distributed.sharding=fsdp2"], ["runtime=ray"]], ids=["whole", "in parts", "ray"]
)
def test_P13_two_gpus_train_what_one_does(train: Train, settings: list[str]) -> None:
    one, first = train("device=cuda", "train.max_steps=50", name="one")
    two, second = train("device=cuda", "train.max_steps=50", TWO, *settings, name="two")
    assert one.code == two.code == 0, one.err + two.err
    assert_close(first, second)
    assert (first / "samples.jsonl").read_bytes() == (second / "samples.jsonl").read_bytes()


def test_a_drafter_on_ray_has_the_bits_of_one_process_on_a_gpu(train: Train) -> None:
    one, first = train("device=cuda", name="one")
    ray, second = train("device=cuda", "runtime=ray", name="ray")
    assert one.code == ray.code == 0, one.err + ray.err
    assert hash_of(first) == hash_of(second)
