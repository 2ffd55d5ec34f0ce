"""Every rank computes the same rounds; their number does not depend on how many ranks there are."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftsmith.config import RunConfig
from draftsmith.distributed import Seat, seat_of
from draftsmith.errors import ConfigError, PlanError
from draftsmith.plan import EpochPlan, PlanSettings, build_plan, deal_epoch
from draftsmith.run.rounds import Round, batches_of, check_epoch, check_step, rounds
from draftsmith.run.seating import check_machine, check_seat, seated
from helpers import tiny_config

lengths = st.lists(st.integers(5, 200), min_size=1, max_size=60)


def plans_of(counts: list[int]) -> Any:
    cut = PlanSettings(max_tokens=256, num_buckets=4)
    made: dict[int, EpochPlan] = {}
    return lambda epoch: made.setdefault(epoch, build_plan(np.array(counts), cut, seed=3, epoch=epoch))


def all_rounds(plans: Any, config: RunConfig, num_ranks: int, epoch: int = 0, seq: int = 0) -> list[Round]:
    numbers = np.arange(sum(plans(0).batch(i).samples.size for i in range(plans(0).num_batches)))
    store: Any = SimpleNamespace(train_indices=numbers)
    state: Any = SimpleNamespace(epoch=epoch, seq=seq, step=0)
    return list(rounds(config, store, plans, state, num_ranks))


@settings(deadline=None, max_examples=40)
@given(counts=lengths, per_rank=st.integers(1, 3), num_epochs=st.integers(1, 4))
def test_1_2_and_4_ranks_run_the_same_steps_for_every_plan(counts: list[int], per_rank: int, num_epochs: int) -> None:
    config, plans = tiny_config(f"train.grad_accum={4 * per_rank}"), plans_of(counts)
    budget = config.train.model_copy(update={"max_steps": None, "epochs": num_epochs})
    config = config.model_copy(update={"train": budget})
    sequences = []
    for num_ranks in (1, 2, 4):
        found = all_rounds(plans, config, num_ranks)
        sequences.append([spec for each in found for spec in each.specs])
        for each in found[:-1]:
            assert sorted(each.ranks) == list(range(num_ranks)), "one batch for every rank"
        assert len({*found[-1].ranks}) == len(found[-1].ranks)
        own = [list(batches_of(rank, iter(found))) for rank in range(num_ranks)]
        assert sum(map(len, own)) == len(sequences[-1])
        assert max(map(len, own)) - min(map(len, own)) <= 1
    assert sequences[0] == sequences[1] == sequences[2]
    assert len(sequences[0]) == sum(plans(epoch).num_batches for epoch in range(num_epochs))


@settings(deadline=None, max_examples=40)
@given(counts=lengths, num_ranks=st.sampled_from([2, 4]), resumed=st.integers(0, 9))
def test_a_run_that_goes_on_deals_as_it_would_have(counts: list[int], num_ranks: int, resumed: int) -> None:
    config, plans = tiny_config("train.grad_accum=4", "train.max_steps=10"), plans_of(counts)
    whole = all_rounds(plans, config, num_ranks)
    first = whole[(resumed * 4) // num_ranks].specs[0]  # of a step
    rest = all_rounds(plans, config, num_ranks, first.epoch, first.seq)
    assert rest[: len(whole) - (resumed * 4) // num_ranks] == whole[(resumed * 4) // num_ranks :]


@given(order=st.lists(st.integers(0, 4), min_size=1, max_size=80), world=st.integers(2, 6), start=st.integers(0, 5))
def test_a_group_that_spans_two_epochs_gives_each_rank_one_batch(order: list[int], world: int, start: int) -> None:
    start %= world
    buckets = np.array(order, dtype=np.uint8)
    ranks = [*range(world - start)] if start else []  # what the epoch before left
    for _ in range(3):
        ranks += deal_epoch(buckets, world, start=start).tolist()
        start = (start - len(order)) % world
    for group in itertools.zip_longest(*[iter(ranks)] * world):
        assert sorted(rank for rank in group if rank is not None) == list(range(world)) or None in group


def test_a_step_that_ranks_cannot_share_evenly_is_refused_with_the_next_number_that_works() -> None:
    with pytest.raises(ConfigError, match=r"train\.grad_accum is 6.*4 processes; set it to 8"):
        check_step(tiny_config("train.grad_accum=6"), 4)
    with pytest.raises(ConfigError, match="set it to 2, or use fewer processes"):
        check_step(tiny_config(), 2)


def test_more_ranks_than_batches_are_refused() -> None:
    with pytest.raises(PlanError, match="an epoch has 1 batches, fewer than the 2 processes"):
        check_epoch(plans_of([100])(0), 2)


def test_every_rank_gets_its_own_devices_and_its_share_of_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("draftsmith.run.seating.num_cores", lambda: 8)
    config = tiny_config('flow.target_devices=["cuda:0", "cuda:1", "cuda:2", "cuda:3"]').model_copy(
        update={"num_threads": None}
    )
    devices = config.distributed.model_copy(update={"drafter_devices": ("cuda:4", "cuda:5")})
    first, second = (
        seated(config.model_copy(update={"distributed": devices}), Seat(rank, 2, rank, 2)) for rank in range(2)
    )
    assert (first.device, first.flow.target_devices, first.num_threads) == ("cuda:4", ("cuda:0", "cuda:1"), 4)
    assert (second.device, second.flow.target_devices) == ("cuda:5", ("cuda:2", "cuda:3"))
    assert seated(tiny_config("device=cuda"), Seat(3, 4, 1, 2)).device == "cuda:1", "by place on its own machine"
    assert seated(tiny_config(), Seat()) == tiny_config()


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["flow.target_devices=['cpu', 'cpu', 'cpu']"], "3 devices for 2 processes.*list 2 or 4"),
        (["flow.drafter_device=cpu"], "one device for 2 processes"),
        (["distributed.drafter_devices=['cpu']"], "list 2, one for each process"),
        (["distributed.drafter_devices=['cuda:1', 'cuda:1']"], "no GPU twice"),
        (["device=cuda:1"], "one GPU for 2 processes; set device=cuda"),
        (["device=cuda"], "process 0 would use cuda:0, but this machine has 0 GPUs"),
        (["distributed.drafter_devices=['cpu', 'cuda:7']"], "process 1 would use cuda:7"),
    ],
)
def test_devices_that_cannot_be_shared_or_are_not_there_are_named(
    overrides: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    with pytest.raises(ConfigError, match=message):
        check_machine(tiny_config("train.grad_accum=2", *overrides), 2)


def test_torchrun_and_the_configuration_must_not_contradict_each_other() -> None:
    with pytest.raises(ConfigError, match=r"num_processes is 4, but 2 were started"):
        check_seat(tiny_config("distributed.num_processes=4"), Seat(0, 2, 0, 2))
    check_seat(tiny_config("distributed.num_processes=4", "runtime=ray"), Seat(0, 4, 0, 1))
    with pytest.raises(ConfigError, match="first-epoch is written by one process"):
        check_seat(tiny_config("target.cache=first-epoch"), Seat(0, 2, 0, 2))


def test_a_seat_is_what_torchrun_says() -> None:
    told = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}
    assert seat_of(told) == Seat(5, 8, 1, 4)
    assert seat_of({}) is None
    with pytest.raises(ConfigError, match="no number in LOCAL_RANK"):
        seat_of({"RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"})
