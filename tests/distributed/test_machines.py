"""Several machines train what one process would have trained, started with the commands of docs/how-to/many-devices.md.

The machines are made of namespaces (machines.py), so these tests need root on Linux.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from machines import NETWORK, Machine, can_be_made, machines
from ranks import events_of, hash_of

from helpers import CONFIGS

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(600),
]
PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "many-devices.md").read_text(encoding="utf-8")
DRAFTSMITH = [sys.executable, "-c", "from draftsmith.cli import main; main()"]
TOKEN = ".ray/auth_token"


def commands(title: str) -> list[str]:
    """The blocks of code below a title of the page, for our small machines."""
    section = re.search(rf"^## {title}\n(.*?)^## ", PAGE, re.S | re.M)
    assert section is not None
    blocks = re.findall(r"^```\n(.*?)^```", section[1], re.S | re.M)
    return [block.replace("FIRST", f"{NETWORK}.1").replace("64000000000", "300000000") for block in blocks]


@pytest.fixture
def three(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Machine]]:
    if not can_be_made():
        pytest.skip("needs root, and namespaces of Linux")
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=":")
    monkeypatch.setenv("PYTHONPATH", ":".join(path for path in sys.path if path))
    with machines(["one", "two", "three"], tmp_path) as made:
        yield made


@pytest.fixture
def cluster(three: list[Machine]) -> list[Machine]:
    _, first, others, _ = commands("Many machines")
    three[0].shell(first)
    for machine in three[1:]:
        (machine.home / TOKEN).parent.mkdir()
        shutil.copy(three[0].home / TOKEN, machine.home / TOKEN)
        machine.shell(others)
    return three


def words(settings: list[str], run: Path) -> list[object]:
    return ["train", CONFIGS / "tiny-cpu.toml", *settings, f"run.dir={run}"]


def on_ray(settings: list[str], run: Path) -> list[object]:
    """The page's last command, for processors: our settings come last, so they count."""
    export, command = commands("Many machines")[-1].split("\n", 1)
    assert export == "export RAY_AUTH_MODE=token"
    draftsmith, train, _config, *its = shlex.split(command.replace("\\\n", ""))
    assert (draftsmith, train) == ("draftsmith", "train")
    ours = ["device=cpu", "flow.target_devices=['cpu', 'cpu']", "flow.budget_bytes=33554432"]
    return [*DRAFTSMITH, train, CONFIGS / "tiny-cpu.toml", *its, *settings, *ours, f"run.dir={run}"]


def ended(process: subprocess.Popen[str], seconds: float = 240) -> str:
    said, _ = process.communicate(timeout=seconds)
    return said


def done(machine: Machine, *command: object) -> str:
    """What a command said that must succeed."""
    started = machine.start(*command)
    said = ended(started)
    assert started.returncode == 0, said
    return said


def until(condition: Callable[[], Any], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert process.poll() is None, ended(process)
        assert time.monotonic() < deadline
        time.sleep(0.02)


def has_actors(machine: Machine) -> bool:
    return re.search(rb"ray::(Rank|Function)Actor", machine.processes()) is not None


def num_lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def test_torchrun_on_two_machines_trains_what_one_process_does(
    three: list[Machine], alone: Path, settings: list[str], tmp_path: Path
) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=1", "--nnodes=2", "--no-python"]
    meeting = ["--rdzv-backend=c10d", "--rdzv-endpoint=one:29500", "--rdzv-id=1"]
    started = [
        machine.start(*torchrun, *meeting, *DRAFTSMITH, *words(settings, tmp_path / "run"), OMP_NUM_THREADS="1")
        for machine in three[:2]
    ]
    said = [ended(process) for process in started]
    assert [process.returncode for process in started] == [0, 0], "\n".join(said)
    assert hash_of(tmp_path / "run") == hash_of(alone)
    assert (tmp_path / "run" / "samples.jsonl").read_bytes() == (alone / "samples.jsonl").read_bytes()


def test_a_machine_that_is_switched_off_changes_nothing(
    cluster: list[Machine], settings: list[str], tmp_path: Path
) -> None:
    """A rank was on it, and perhaps targets. Meanwhile the directory of the run is refused to other machines."""
    longer = [*settings, "train.max_steps=400", "checkpoint.every_steps=20"]
    alone, run = tmp_path / "alone", tmp_path / "run"
    done(cluster[0], *DRAFTSMITH, *words(longer, alone))
    started = cluster[0].start(*on_ray(longer, run))
    until(lambda: num_lines(run / "samples.jsonl") > 50, started)
    second = cluster[1].start(*DRAFTSMITH, *words(longer, run))
    refused = ended(second)
    assert second.returncode == 2, refused
    holder = json.loads((run / "LOCK").read_text())["host"]
    assert re.search(rf'{run} is in use by another process, {{"pid": \d+, "host": "{holder}"}}', refused)
    assert holder in [machine.name for machine in cluster]
    assert started.poll() is None, "it trains still"
    next(machine for machine in cluster[1:] if b"ray::RankActor" in machine.processes()).switch_off()
    said = ended(started)
    assert started.returncode == 0, said
    assert "is gone, or its machine" in said
    assert "all ranks start again from step" in said
    assert hash_of(run) == hash_of(alone)
    assert (run / "samples.jsonl").read_bytes() == (alone / "samples.jsonl").read_bytes()
    assert [event["event"] for event in events_of(run)].count("resume") == 1


def test_tune_names_the_machine_of_each_rank(cluster: list[Machine], settings: list[str]) -> None:
    arguments = on_ray(settings, Path("unused"))
    arguments[arguments.index("train")] = "tune"
    said = done(cluster[0], *arguments, "--batches", 2)
    assert len({machine.name for machine in cluster if re.search(rf"\b{machine.name}\b", said)}) == 2, said


def test_when_the_machine_of_the_driver_is_switched_off_all_ends_and_another_machine_goes_on(
    cluster: list[Machine], settings: list[str], tmp_path: Path
) -> None:
    longer = [*settings, "train.max_steps=100", "checkpoint.every_steps=10"]
    alone, run = tmp_path / "alone", tmp_path / "run"
    done(cluster[0], *DRAFTSMITH, *words(longer, alone))
    others = cluster[:2]
    started = cluster[2].start(*on_ray(longer, run))
    until(lambda: num_lines(run / "samples.jsonl") > 20, started)
    assert any(has_actors(machine) for machine in others)
    cluster[2].switch_off()
    assert started.wait() != 0
    began = time.monotonic()
    while any(map(has_actors, others)):
        assert time.monotonic() - began < 120
        time.sleep(0.5)
    assert num_lines(run / "samples.jsonl") < num_lines(alone / "samples.jsonl"), "it was stopped"
    done(cluster[1], *on_ray(longer, run), "--resume")
    assert hash_of(run) == hash_of(alone)
    assert (run / "samples.jsonl").read_bytes() == (alone / "samples.jsonl").read_bytes()
