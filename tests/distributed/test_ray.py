"""On Ray, drafters train what one process would have trained, whatever dies meanwhile; nothing is left behind.

One cluster of two raylets for the whole file. What is killed there, and when, is drawn by CHAOS_SEED.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
import pytest
from ranks import assert_close, hash_of

import draftsmith.distributed.cluster as own
from draftsmith.config import RunConfig, load_config
from draftsmith.data import TokenStore
from draftsmith.distributed import Share, Takes, placed, ray_at
from draftsmith.flow import FlowStats
from draftsmith.records import BatchSpec
from draftsmith.run.on_ray import workers_elsewhere
from draftsmith.run.opening import new_drafter, open_store, planned, plans_of
from draftsmith.streams import Workers, feature_stream, topology, workers_here
from draftsmith.target import Target
from draftsmith.training import TrainState, load_checkpoint, params_sha256, train_step
from helpers import CONFIGS, Finished, draftsmith
from processes import Training

# Found, not imported: Ray reads how it is authenticated when it is. Where it is there and does not start, tests fail.
pytestmark = pytest.mark.skipif(find_spec("ray") is None, reason="pip install 'draftsmith[ray]'")

# Other people's Rays on this machine are none of our business: every process that we start has this in its environment.
MARK, MINE = "DRAFTSMITH_TEST", f"{os.getpid()}"
os.environ[MARK] = MINE
FAMILY = {os.getpid()}
DIRECTORIES: set[str] = set()  # that any of the family was told of

SEED = int(os.environ.get("CHAOS_SEED", "0"))
STORE_BYTES = 256 << 20
LONG_RUN = ["train.max_steps=60", "checkpoint.every_steps=5", "eval.num_prompts=0", "eval.num_timed=0"]
TARGET = "flow.target_devices=['cpu']"
BUDGET = "flow.budget_bytes=16777216"
NUM_BATCHES = 80  # in which four things happen, far enough apart that between two of them somebody works


def left_behind() -> set[str]:
    """Of the Rays of these tests: directories, shared memory, and processes."""
    processes = set()
    for process in psutil.process_iter(["ppid", "name", "cmdline", "environ"]):
        environment = process.info["environ"] or {}  # some write their title over it, so their parents are asked
        if environment.get(MARK) == MINE or process.info["ppid"] in FAMILY:
            FAMILY.add(process.pid)
            DIRECTORIES.update(re.findall(r"/tmp/draftsmith-ray-\w+", " ".join(environment.values())))
        words = " ".join([process.info["name"] or "", *(process.info["cmdline"] or [])])
        if process.pid in FAMILY and ("raylet" in words or "gcs_server" in words or "ray::" in words):
            processes.add(f"{process.pid} {words[:100]}")
    return processes | {path for path in DIRECTORIES if Path(path).exists()} | set(map(str, Path("/dev/shm").iterdir()))


def until(condition: Callable[[], Any], seconds: float = 20.0) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, left_behind()
        time.sleep(0.005)
    return found


@dataclass
class Nodes:
    """A cluster on this machine: its head, and another node that may die."""

    cluster: Any
    second: Any = None

    def grow(self) -> None:
        self.second = self.cluster.add_node(num_cpus=3, object_store_memory=STORE_BYTES)
        left_behind()  # gets to know them while they have parents

    def lose_one(self) -> None:
        self.cluster.remove_node(self.second, allow_graceful=False)


@pytest.fixture(autouse=True)
def P11_nothing_is_left_running() -> None:
    """Nodes of the cluster come and go within a test; what is left of all is looked for at the end of the module."""


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    before = left_behind()
    scratch = own._scratch_directory()
    with pytest.MonkeyPatch.context() as patched, scratch as directory:
        (directory / "token").write_text(own._token())
        patched.setenv("RAY_AUTH_MODE", "token")
        patched.setenv("RAY_AUTH_TOKEN_PATH", str(directory / "token"))
        patched.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patched.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
        from ray._private import ray_constants
        from ray.cluster_utils import Cluster

        patched.setattr(ray_constants, "ENABLE_RAY_CLUSTER", False)
        patched.setenv("RAY_TMPDIR", str(directory))
        (directory / "ray").mkdir()
        soon = {"health_check_period_ms": 500, "health_check_failure_threshold": 3}
        head = {"num_cpus": 3, "object_store_memory": STORE_BYTES, "_system_config": soon}
        nodes = Nodes(Cluster(initialize_head=True, head_node_args=head))
        nodes.grow()
        yield nodes
        nodes.cluster.shutdown()
    until(lambda: not left_behind() - before)


@pytest.fixture(scope="module")
def settings(settings_of_run: list[str]) -> list[str]:
    return [*settings_of_run, *LONG_RUN, TARGET, BUDGET]


@pytest.fixture(scope="module")
def alone(settings: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("alone") / "run"
    done = draftsmith("train", CONFIGS / "tiny-cpu.toml", *settings, f"run.dir={run}")
    assert done.code == 0, done.err
    return run


def on_ray(nodes: Nodes, run: Path, *settings: str) -> Finished:
    elsewhere = ["runtime=ray", f"ray.address={nodes.cluster.address}", f"run.dir={run}"]
    return draftsmith("train", CONFIGS / "tiny-cpu.toml", *settings, *elsewhere)


def steps_of(run: Path) -> int:
    path = run / "metrics.jsonl"
    return path.read_bytes().count(b'"loss"') if path.exists() else 0


@contextmanager
def meanwhile(what: Callable[[], None]) -> Iterator[None]:
    thread = threading.Thread(target=what)
    thread.start()
    yield
    thread.join()


def test_a_drafter_rank_that_is_killed_on_a_cluster_leaves_the_bits_of_one_process(
    nodes: Nodes, settings: list[str], alone: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"

    def kill() -> None:
        until(lambda: steps_of(run) > random.Random(SEED).randint(6, 30), seconds=60)
        os.kill(json.loads((run / "LOCK").read_text())["pid"], signal.SIGKILL)

    with meanwhile(kill):
        done = on_ray(nodes, run, *settings)
    assert done.code == 0, done.err
    assert hash_of(run) == hash_of(alone)
    assert (run / "samples.jsonl").read_bytes() == (alone / "samples.jsonl").read_bytes()
    assert f"what goes on then is: draftsmith train {run} --resume" in done.err
    assert "rank 0 is gone, or its machine" in done.err
    assert "all ranks start again from step" in done.err
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    assert [event["event"] for event in events].count("resume") == 1
    assert "step 1 " in done.err, "progress is shown"


def test_P9_a_signal_to_the_driver_saves_the_step_and_exits_with_its_number(
    nodes: Nodes, settings: list[str], tmp_path: Path
) -> None:
    run = tmp_path / "run"

    def stop() -> None:
        until(lambda: steps_of(run) > 3, seconds=60)
        os.kill(os.getpid(), signal.SIGTERM)

    with meanwhile(stop):
        done = on_ray(nodes, run, *settings, "train.max_steps=100000")
    assert done.code == 143, done.err
    assert "stopped by SIGTERM" in done.err
    assert load_checkpoint(run)[1]["step"] == steps_of(run)


@pytest.mark.long
def test_a_drafter_in_parts_on_ray_is_stopped_and_goes_on_there_and_here(
    nodes: Nodes, settings: list[str], tmp_path: Path
) -> None:
    whole, run, same = tmp_path / "whole", tmp_path / "run", [*settings, "train.grad_accum=2"]
    two = ["distributed.num_processes=2", "distributed.sharding=fsdp2", "flow.target_devices=['cpu', 'cpu']"]
    done = draftsmith("train", CONFIGS / "tiny-cpu.toml", *same, f"run.dir={whole}")
    assert done.code == 0, done.err

    def stop_after(num_steps: int) -> None:
        until(lambda: steps_of(run) > num_steps, seconds=60)
        os.kill(os.getpid(), signal.SIGINT)

    for num_steps in (10, 25):
        with meanwhile(functools.partial(stop_after, num_steps)):
            done = on_ray(nodes, run, *same, *two)
        assert done.code == 130, done.err
        assert load_checkpoint(run)[1]["step"] < 60
    done = draftsmith("train", CONFIGS / "tiny-cpu.toml", *same, f"run.dir={run}", "--resume")
    assert done.code == 0, done.err
    assert_close(run, whole)
    assert (run / "samples.jsonl").read_bytes() == (whole / "samples.jsonl").read_bytes()


@dataclass
class Bench:
    """Some steps of training in this process, whose hidden states come from elsewhere."""

    config: RunConfig
    target: Target
    tokenizer: Any
    store: TokenStore
    specs: Sequence[BatchSpec] = field(default_factory=list)

    def trained(self, workers: Workers, happens: Mapping[int, Callable[[], None]]) -> tuple[str, FlowStats]:
        """The hash after training on all batches, and who was slow; things happen when so many have been used."""
        state = TrainState.create(new_drafter(self.config, self.target, self.tokenizer, self.store), self.config)
        self.specs = self.specs or list(
            itertools.islice(planned(self.config, self.store, plans_of(self.config, self.store), state), NUM_BATCHES)
        )
        assert len(self.specs) == NUM_BATCHES
        where = topology(self.config, device="cpu", num_cores=1)
        arguments = self.specs, self.config, self.store, self.target, None
        with feature_stream(*arguments, where=where, workers=workers) as stream:
            for number, item in enumerate(stream):
                train_step(state, item, self.target, self.config, progress=0.5)
                del item
                happens.get(number, lambda: None)()  # in a thread, while somebody works
            return params_sha256(state.drafter), stream.stats()


@pytest.fixture
def bench(settings_of_run: list[str], target: Target, tokenizer: Any, tmp_path: Path) -> Bench:
    three = "flow.target_devices=['cpu', 'cpu', 'cpu']"
    more = [three, BUDGET, "flow.watchdog_s=60", f"train.max_steps={NUM_BATCHES}", "batching.max_tokens=256"]
    config = load_config(CONFIGS / "tiny-cpu.toml", [*settings_of_run, *more])
    return Bench(config, target, tokenizer, open_store(config, tokenizer, tmp_path))


@pytest.mark.parametrize("num_kills", [8, pytest.param(40, marks=[pytest.mark.long, pytest.mark.timeout(900)])])
def test_P3_targets_and_machines_that_die_change_nothing(nodes: Nodes, bench: Bench, num_kills: int) -> None:
    """Three times a target, then a whole machine, in the middle of the work of whoever is left."""
    import ray

    draw, (same, _), num_retries = random.Random(SEED), bench.trained(workers_here, {}), 0
    shares = [Share(Takes(1), [Takes(1)] * 3)]
    with ray_at(nodes.cluster.address), placed(shares, placing_s=60, max_restarts=100) as places:
        actors = places.functions[0]

        def kill_one() -> None:
            ray.kill(draw.choice(actors), no_restart=False)

        for _ in range(num_kills // 4):
            kills = [threading.Timer(draw.uniform(0, 0.03), kill) for kill in [*[kill_one] * 3, nodes.lose_one]]
            moments = [quarter * NUM_BATCHES // 4 + draw.randint(0, 4) for quarter in range(4)]
            happens = {moment: kill.start for moment, kill in zip(moments, kills, strict=True)}
            found, stats = bench.trained(functools.partial(workers_elsewhere, actors), happens)
            assert found == same
            num_retries += stats.stages[2].num_retries
            for kill in kills:
                kill.join()
            nodes.grow()
        assert num_retries >= 1, "somebody was busy when it was killed"
        free = ray.cluster_resources()["object_store_memory"]
        until(lambda: ray.available_resources()["object_store_memory"] == free)


def test_everything_ends_with_the_driver_and_listens_on_loopback_alone(settings: list[str], tmp_path: Path) -> None:
    run, before = tmp_path / "run", left_behind()
    more = ["train.max_steps=100000", f"run.dir={run}", "runtime=ray"]
    driver = Training(["train", CONFIGS / "tiny-cpu.toml", *settings, *more], tmp_path / "err")
    until(lambda: steps_of(run) > 3 or driver.wait(0) is not None, seconds=60)
    assert driver.wait(0) is None, driver.said
    family = [psutil.Process(driver.pid), *psutil.Process(driver.pid).children(recursive=True)]
    listening = {c.laddr.ip for p in family for c in p.net_connections("inet") if c.status == psutil.CONN_LISTEN}
    (directory,) = {path for path in left_behind() - before if path.startswith("/tmp/")}
    token = Path(directory) / "token"
    secret, mode = token.read_text(), token.stat().st_mode
    os.kill(driver.pid, signal.SIGKILL)
    driver.wait()
    until(lambda: not left_behind() - before, seconds=10)
    assert {ip.removeprefix("::ffff:") for ip in listening} == {"127.0.0.1"}
    assert mode & 0o777 == 0o600
    assert f"draftsmith train {run} --resume" in driver.said
    written = [path.read_bytes() for path in [*run.rglob("*"), tmp_path / "err"] if path.is_file()]
    assert not any(secret.encode() in text for text in written), "P16"
    until(lambda: not any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in family), seconds=10)


ENDS_LATER = """
import time
from draftsmith.distributed import own_ray
with own_ray(cpus=1, gpus=0, store_bytes=1 << 27):
    pass
time.sleep(1)
"""


def test_a_driver_that_lives_on_does() -> None:
    """As a library, in a process that does other things afterwards; its logs of Ray stay open."""
    before = left_behind()
    done = subprocess.run([sys.executable, "-c", ENDS_LATER], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    until(lambda: not left_behind() - before)


@contextmanager
def deaf() -> Iterator[str]:
    """An address that accepts connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"127.0.0.1:{listening.getsockname()[1]}"


def test_what_ray_cannot_do_is_said_before_anything_starts(
    nodes: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def error_of(*settings: str) -> str:
        done = draftsmith("train", CONFIGS / "tiny-cpu.toml", "runtime=ray", f"run.dir={tmp_path / 'run'}", *settings)
        assert done.code == 2
        assert "goes on" not in done.err, "nothing has begun"
        return done.err

    assert "in /dev/shm), but up to" in error_of("flow.budget_bytes=1000000000000000")
    assert "takes 2 GPUs, and Ray has 0" in error_of("flow.target_devices=['cuda:0']", "device=cuda")
    assert "device 'mps' cannot be used with runtime=ray" in error_of("flow.target_devices=['mps']")
    assert "where Ray does not answer (" in error_of("ray.address=127.0.0.1:1")
    assert "ray.address is 'ray://somewhere'" in error_of("ray.address=ray://somewhere")
    assert "cannot be shared evenly by 2" in error_of("distributed.num_processes=2")
    with deaf() as address:
        start = time.monotonic()
        assert "where Ray does not answer (timed out" in error_of(f"ray.address={address}")
        assert time.monotonic() - start < 15
    for token in ("of another cluster", None):
        with monkeypatch.context() as patched:
            patched.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "token"))
            if token:
                (tmp_path / "token").write_text(token)
            start = time.monotonic()
            assert "whose token is not the one here" in error_of(f"ray.address={nodes.cluster.address}")
            assert time.monotonic() - start < 10, "not after Ray's own attempts"
        (tmp_path / "token").unlink(missing_ok=True)
    with monkeypatch.context() as patched:
        patched.setenv("RAY_AUTH_MODE", "disabled")
        assert "RAY_AUTH_MODE is 'disabled'" in error_of("ray.address=127.0.0.1:1")
    monkeypatch.setattr(own, "find_spec", lambda _name: None)
    assert "pip install 'draftsmith[ray]'" in error_of()
    assert not (tmp_path / "run").exists()
