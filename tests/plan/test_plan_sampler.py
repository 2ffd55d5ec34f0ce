"""The batch sampler inside of other people's loaders."""

from __future__ import annotations

import json

import pytest
import torch
from plan_vectors import LENGTHS
from torch.utils.data import DataLoader, Dataset

from draftsmith.errors import PlanError
from draftsmith.plan import BucketBatchSampler, PlannedDataLoader, PlanSettings, audit_order

SETTINGS = PlanSettings(max_tokens=4096, num_buckets=4, shapes="static")


class Identity(Dataset[int]):
    def __len__(self) -> int:
        return len(LENGTHS)

    def __getitem__(self, index: int) -> int:
        return index


def as_list(samples: list[int]) -> list[int]:
    return samples


def sampler(**rules: int) -> BucketBatchSampler:
    return BucketBatchSampler(LENGTHS, SETTINGS, seed=5, **rules)  # type: ignore[arg-type]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_loader_sees_every_sample_once_an_epoch_and_epochs_differ(num_workers: int) -> None:
    loader = DataLoader(Identity(), batch_sampler=sampler(), collate_fn=as_list, num_workers=num_workers)
    first, second = list(loader), list(loader)
    for epoch in (first, second):
        assert len(epoch) == len(loader)
        assert sorted(index for batch in epoch for index in batch) == list(range(len(LENGTHS)))
    assert first != second


def test_set_epoch_names_the_epoch_and_setting_it_again_changes_nothing() -> None:
    by_hand, by_itself = sampler(), sampler()
    list(by_itself)
    by_hand.set_epoch(1)
    assert list(by_hand) == list(by_itself)
    by_hand.set_epoch(0)
    assert list(by_hand) == list(sampler())


def test_ranks_share_the_epoch_and_take_the_same_number_of_steps() -> None:
    ranks = [sampler(num_replicas=3, rank=rank, grad_accum=2) for rank in range(3)]
    batches = [list(each) for each in ranks]
    assert len({len(each) for each in ranks}) == 1
    assert {len(each) for each in batches} == {len(ranks[0])}
    assert len(ranks[0]) % 2 == 0
    seen = [index for each in batches for batch in each for index in batch]
    assert len(seen) == len(set(seen))
    assert len(LENGTHS) - len(seen) < 6 * max(len(batch) for each in batches for batch in each)


def test_a_sampler_resumes_from_its_state_at_any_step() -> None:
    whole = list(sampler())
    for step in (0, 1, 2, len(whole) // 2, len(whole) - 1, len(whole)):
        running = sampler()
        iterator = iter(running)
        for _ in range(step):
            next(iterator)
        state = json.loads(json.dumps(running.state_dict()))
        other = sampler()
        other.load_state_dict(state)
        other.set_epoch(0)  # as trainers do before every epoch
        assert list(other) == whole[step:]
        assert list(other) == list(_epoch(1))


def test_a_state_of_a_later_epoch_brings_its_plan() -> None:
    running = sampler()
    running.set_epoch(4)
    other = sampler()
    other.load_state_dict(running.state_dict(step=3))
    assert other.epoch == 4
    assert list(other) == list(_epoch(4))[3:]


def test_a_changed_world_seed_or_data_is_refused() -> None:
    state = sampler().state_dict(step=2)
    with pytest.raises(PlanError, match="1 replicas, now there are 2"):
        sampler(num_replicas=2).load_state_dict(state)
    with pytest.raises(PlanError, match="seed 5, this sampler has 6"):
        BucketBatchSampler(LENGTHS, SETTINGS, seed=6).load_state_dict(state)
    with pytest.raises(PlanError, match="saved over 3000 samples, now there are 2990"):
        BucketBatchSampler(LENGTHS[:2990], SETTINGS, seed=5).load_state_dict(state)
    with pytest.raises(PlanError, match="rank is 2, but num_replicas is 2"):
        sampler(num_replicas=2, rank=2)


def test_the_order_of_the_sampler_is_the_order_of_the_plan() -> None:
    plan = sampler().plan
    assert [batch.samples.tolist() for batch in plan] == list(sampler())
    assert audit_order(plan.order, plan.counts).max_drift < 2


def test_a_planned_loader_passes_the_epoch_on() -> None:
    loader = PlannedDataLoader(Identity(), batch_sampler=sampler(), collate_fn=torch.tensor)
    loader.set_epoch(3)
    assert [batch.tolist() for batch in loader] == list(_epoch(3))


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("steps", [0, 1, 20])
def test_a_stateful_loader_resumes_where_it_was(num_workers: int, steps: int) -> None:
    stateful = pytest.importorskip("torchdata.stateful_dataloader")

    def loader() -> DataLoader[int]:
        made: DataLoader[int] = stateful.StatefulDataLoader(
            Identity(), batch_sampler=sampler(), collate_fn=as_list, num_workers=num_workers
        )
        return made

    whole = list(loader())
    running = loader()
    iterator = iter(running)
    for _ in range(steps):
        next(iterator)
    resumed = loader()
    resumed.load_state_dict(running.state_dict())  # type: ignore[attr-defined]
    assert list(resumed) == whole[steps:]
    assert list(resumed) == list(_epoch(1))


def _epoch(epoch: int) -> BucketBatchSampler:
    later = sampler()
    later.set_epoch(epoch)
    return later
