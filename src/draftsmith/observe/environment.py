"""What a run ran on: versions, hardware, and how much memory it took."""

from __future__ import annotations

import os
import platform
import resource
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from draftsmith.observe.cgroup import memory_limit

PACKAGES = ("torch", "transformers", "numpy", "safetensors", "tokenizers", "pydantic")


def describe_environment() -> dict[str, Any]:
    """Versions of what computes, processor and cores, system memory."""
    return {
        "draftsmith": metadata.version("draftsmith"),
        "python": platform.python_version(),
        "packages": {name: metadata.version(name) for name in PACKAGES},
        "platform": platform.platform(),
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_bytes": _memory_bytes(),
    }


def peak_memory_bytes() -> int:
    """Largest resident size of this process so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _processor() -> str:
    """Name and the instruction sets that decide whether bf16 is fast."""
    facts = processor_facts()
    fast = [flag for flag in ("avx512_bf16", "amx_bf16") if flag in facts.get("flags", "").split()]
    return " ".join([facts.get("model name", platform.processor()), *fast])


def processor_facts() -> dict[str, str]:
    """What Linux says of the processor, by name; nothing elsewhere."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return {}
    return {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}


def memory_limit_bytes() -> int:
    """What this process may use: the limit of its control groups, or the memory of the machine if that is less."""
    return min(_memory_bytes(), memory_limit() or _memory_bytes())


def _memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
