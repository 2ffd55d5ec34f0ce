"""The doctor measures, says what would go wrong, and ends with a code that a script can act on."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest
import torch

from draftsmith.observe import cgroup, devices, machine
from draftsmith.observe.finding import Finding
from draftsmith.run import doctor
from helpers import draftsmith

GB = 10**9


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure for a moment only."""
    monkeypatch.setattr(devices, "FOR_S", 0.0)
    monkeypatch.setattr(devices, "SIDE", {"cpu": 64, "cuda": 64})


@pytest.mark.usefixtures("quick")
def test_the_doctor_names_what_matters_and_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    shown = draftsmith("doctor", "--json")
    found = json.loads(shown.out)
    names = {check["name"] for check in found["checks"]}
    assert names >= {"python", "torch", "processor", "cores", "memory", "runs", "cache", "/dev/shm", "loopback"}
    assert found["usable"] == (shown.code == 0) == all(check["status"] != "problem" for check in found["checks"])
    assert not list(tmp_path.iterdir())
    table = draftsmith("doctor")
    assert table.code == shown.code
    assert "processor" in table.out
    assert "Training works here" in table.out


def test_a_problem_ends_with_code_2_and_a_warning_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    for status, code in (("problem", 2), ("warning", 0), ("ok", 0)):
        finding = Finding("memory", status, "[little]", "buy some")  # type: ignore[arg-type]
        monkeypatch.setattr(doctor, "examine", lambda finding=finding: [finding])
        shown = draftsmith("doctor")
        assert shown.code == code
        assert "[little]" in shown.out
        assert "buy some" in shown.out
        assert draftsmith("doctor", "--json").code == code


def test_products_are_measured_in_both_number_types_and_found_right() -> None:
    (cpu, *_) = devices.torch_and_devices()
    assert cpu.status in ("ok", "warning"), cpu
    assert set(cpu.facts["gflops"]) == {"float32", "bfloat16"}
    assert all(rate > 0 for rate in cpu.facts["gflops"].values())


@pytest.mark.parametrize(
    ("rates", "status", "advice"),
    [
        ({torch.float32: (100.0, 0.0), torch.bfloat16: (10.0, 0.001)}, "warning", "bf16 is 10.0 times slower"),
        ({torch.float32: (100.0, 0.0), torch.bfloat16: (300.0, 0.001)}, "ok", ""),
        ({torch.float32: (100.0, 0.4), torch.bfloat16: (300.0, 0.001)}, "problem", "broken"),
        ({torch.float32: (100.0, 0.0), torch.bfloat16: (300.0, float("nan"))}, "problem", "broken"),
    ],
)
def test_slow_and_wrong_number_types_are_told_apart(
    monkeypatch: pytest.MonkeyPatch, rates: dict[torch.dtype, tuple[float, float]], status: str, advice: str
) -> None:
    monkeypatch.setattr(devices, "_product", lambda _device, dtype: rates[dtype])
    (cpu, *_) = devices.torch_and_devices()
    assert cpu.status == status
    assert advice in cpu.advice


def test_a_gpu_that_cannot_be_used_is_a_problem_and_an_old_one_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "_product", lambda _device, _dtype: (100.0, 0.0))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)

    def broken(_device: Any) -> None:
        raise RuntimeError("no kernel image is available\nfor this device")

    monkeypatch.setattr(torch.cuda, "get_device_properties", broken)
    assert [(f.name, f.status) for f in devices.torch_and_devices()[1:]] == [("GPU 0", "problem")]
    old = type("Properties", (), {"name": "old", "major": 7, "minor": 5})()
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _device: old)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _device: (GB, 16 * GB))
    found = {finding.name: finding for finding in devices.torch_and_devices()[1:]}
    assert found["GPU 0"].status == "ok"
    assert found["GPU 0 bf16"].status == found["GPU 0 memory"].status == "warning"


def test_packages_that_are_missing_or_too_old_are_named_with_the_command_that_mends_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    needed = ["numpy>=999", "no-such-package>=1", 'numba>=0.60; extra == "fast"']
    monkeypatch.setattr(machine.metadata, "requires", lambda _name: needed)
    found = {finding.name: finding for finding in machine.python_and_packages()}
    assert "numba" not in found
    assert (found["numpy"].status, found["no-such-package"].status) == ("problem", "problem")
    assert "pip install 'numpy>=999'" in found["numpy"].advice


def test_optional_packages_say_what_each_is_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "OPTIONAL", {"json": "reading", "no_such_module": "flying"})
    (found,) = machine.optional_packages()
    assert (found.status, found.found) == ("note", "json")
    assert "no_such_module (flying)" in found.advice
    assert found.facts == {"json": True, "no_such_module": False}


@pytest.mark.parametrize(("free", "status"), [(1e8, "problem"), (1e9, "warning"), (1e11, "ok")])
def test_a_disk_is_judged_by_what_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: float, status: str
) -> None:
    usage = type("Usage", (), {"free": int(free), "total": 10**12})()
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda _path: usage)
    found = machine.disk(tmp_path / "not" / "yet", name="runs")
    assert found.status == status
    assert ("run.dir" in found.advice) == (status != "ok")
    assert not list(tmp_path.iterdir())


def test_a_directory_that_cannot_be_written_is_a_problem() -> None:
    found = machine.disk(Path("/proc/nowhere/runs"), name="cache")
    assert found.status == "problem"
    assert "cannot be written" in found.found
    assert "XDG_CACHE_HOME" in found.advice


def test_little_memory_fewer_cores_than_threads_and_small_shared_memory_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert machine._memory(64 * GB, None, 60 * GB).status == "ok"
    assert machine._memory(64 * GB, None, 2 * GB).status == "warning"
    assert machine._memory(GB // 2, GB // 2, 60 * GB).status == "problem"
    throttled = machine._cores(64, 2.5)
    assert throttled.status == "warning"
    assert "num_threads=2" in throttled.advice
    assert machine._cores(4, None).status == "ok"
    assert machine.shared_memory(tmp_path / "none").status == "note"
    usage = type("Usage", (), {"free": 2**26, "total": 2**26})()
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda _path: usage)
    assert machine.shared_memory(tmp_path).status == "warning"


def test_a_taken_port_is_noted() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen(1)
        port = taken.getsockname()[1]
        found = machine.loopback(port)
        assert found.status == "note"
        assert str(port) in found.advice
    assert machine.loopback(port).status == "ok"


def test_limits_of_control_groups_are_read_in_both_versions_and_from_groups_around_ours(tmp_path: Path) -> None:
    membership, root = tmp_path / "cgroup", tmp_path / "sys"
    for path, text in {
        "memory/outer/memory.limit_in_bytes": "3000",
        "memory/outer/inner/memory.limit_in_bytes": "9223372036854771712",
        "cpu/outer/inner/cpu.cfs_quota_us": "150000",
        "cpu/outer/inner/cpu.cfs_period_us": "100000",
        "slice/memory.max": "2000",
        "slice/job/memory.max": "max",
        "slice/job/cpu.max": "max 100000",
        "slice/cpu.max": "400000 100000",
    }.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text + "\n", encoding="utf-8")
    membership.write_text("5:memory:/outer/inner\n3:cpu,cpuacct:/outer/inner\n", encoding="utf-8")
    assert cgroup.memory_limit(membership, root) == 3000
    assert cgroup.cpu_quota(membership, root) == 1.5
    membership.write_text("0::/slice/job\n", encoding="utf-8")
    assert cgroup.memory_limit(membership, root) == 2000
    assert cgroup.cpu_quota(membership, root) == 4.0
    assert cgroup.memory_limit(tmp_path / "none", root) is None
    assert cgroup.cpu_quota(tmp_path / "none", root) is None
