"""What the control groups of this process allow: in a container that, not the machine, is what there is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

MEMBERSHIP = Path("/proc/self/cgroup")
ROOT = Path("/sys/fs/cgroup")


def memory_limit(membership: Path = MEMBERSHIP, root: Path = ROOT) -> int | None:
    """The smallest limit in bytes of our group and of those around it, or None."""
    names = ("memory.max", "memory.limit_in_bytes")  # version 2 and version 1
    found = [_read(group / name) for group in _groups("memory", membership, root) for name in names]
    limits = [int(text) for text in found if text.isdigit()]
    return min(limits, default=None)


def cpu_quota(membership: Path = MEMBERSHIP, root: Path = ROOT) -> float | None:
    """How many cores' worth of time the groups allow, or None."""
    quotas = []
    for group in _groups("cpu", membership, root):
        words = _read(group / "cpu.max").split()  # version 2: quota and period
        words = words or [_read(group / "cpu.cfs_quota_us"), _read(group / "cpu.cfs_period_us")]
        if len(words) == 2 and all(word.isdigit() and int(word) > 0 for word in words):  # no bound is max, or -1
            quotas.append(int(words[0]) / int(words[1]))
    return min(quotas, default=None)


def _groups(controller: str, membership: Path, root: Path) -> Iterator[Path]:
    """Directories of our group and all around it, in the tree of version 2 and in that of the controller."""
    for line in _read(membership).splitlines():
        _number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and controller not in controllers.split(","):
            continue
        relative = PurePosixPath(path.strip().lstrip("/"))
        for tree in (root / controllers, root / controller) if controllers else (root,):
            yield tree / relative
            yield from (tree / parent for parent in relative.parents)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""
