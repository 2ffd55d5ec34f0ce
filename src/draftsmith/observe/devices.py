"""What torch can do here, measured: a number type that a device accepts may still be slow, or wrong."""

from __future__ import annotations

import functools
import math
import time
from typing import TYPE_CHECKING

from draftsmith.errors import first_line
from draftsmith.observe.environment import processor_facts
from draftsmith.observe.finding import Finding
from draftsmith.observe.picture import size

if TYPE_CHECKING:
    import torch

FOR_S = 0.25  # of measuring a product
SIDE = {"cpu": 768, "cuda": 4096}
TOLERANCE = {"float32": 1e-3, "bfloat16": 3e-2}  # of the norm: tf32 keeps 10 bits, bf16 keeps 7


@functools.cache
def fast_dtype(device: str) -> str:
    """bfloat16 where its products are measured to be no slower than those of float32, else float32.

    Processors without instructions for it take ten times as long; the two are never close. Takes half a second, once.
    """
    import torch

    rates = [_product(torch.device(device), dtype)[0] for dtype in (torch.float32, torch.bfloat16)]
    return "float32" if rates[1] < rates[0] else "bfloat16"


def torch_and_devices() -> list[Finding]:
    """Everything that computes: the processor, and every GPU that torch sees."""
    try:
        import torch
    except (ImportError, OSError) as error:
        return [Finding("torch works", "problem", first_line(error), "install torch anew; see https://pytorch.org")]
    found = [_device(torch.device("cpu"), "processor", f"{torch.get_num_threads()} threads, {_instructions()}")]
    if not torch.cuda.is_available():
        built = f"torch is built for CUDA {torch.version.cuda}" if torch.version.cuda else "torch is built without CUDA"
        advice = "trains on the CPU, for small targets only"
        if torch.version.cuda:
            advice += "; if there is a GPU, its driver is missing, or too old for this build"
        return [*found, Finding("GPU", "note", f"none; {built}", advice)]
    for index in range(torch.cuda.device_count()):
        found += _gpu(torch.device("cuda", index))
    return found


def _gpu(device: torch.device) -> list[Finding]:
    import torch

    try:
        properties = torch.cuda.get_device_properties(device)
        free, total = torch.cuda.mem_get_info(device)
    except RuntimeError as error:
        advice = "leave it out with CUDA_VISIBLE_DEVICES"
        return [Finding(f"GPU {device.index}", "problem", first_line(error), advice)]
    described = (
        f"{properties.name}, capability {properties.major}.{properties.minor}, {size(free)} of {size(total)} free"
    )
    found = [_device(device, f"GPU {device.index}", described)]
    if (properties.major, properties.minor) < (8, 0):
        advice = "bf16 needs capability 8.0 to be fast: set target.dtype=float32 and train.dtype=float32"
        found.append(Finding(f"GPU {device.index} bf16", "warning", "no bf16 units", advice))
    if free < total / 2:
        advice = "another process holds most of its memory: see nvidia-smi"
        found.append(Finding(f"GPU {device.index} memory", "warning", f"{size(free)} of {size(total)} free", advice))
    return found


def _device(device: torch.device, name: str, described: str) -> Finding:
    """Products in fp32 and bf16: right, and how fast."""
    import torch

    rates: dict[str, float] = {}
    for dtype in (torch.float32, torch.bfloat16):
        kind = str(dtype).removeprefix("torch.")
        try:
            rates[kind], error = _product(device, dtype)
        except RuntimeError as failure:
            text = f"{described}; {kind}: {first_line(failure)}"
            return Finding(name, "problem", text, "set device to another one")
        if not error < TOLERANCE[kind]:
            text = f"{described}; products in {kind} are wrong by {error:.1%}"
            return Finding(name, "problem", text, "a broken build or broken hardware: install torch anew, or swap it")
    full, half = rates["float32"], rates["bfloat16"]
    text = f"{described}; {full:,.0f} GFLOP/s in fp32, {half:,.0f} in bf16"
    facts = {"gflops": {kind: round(rate, 1) for kind, rate in rates.items()}}
    if half < 0.8 * full:
        advice = (
            f"bf16 is {full / half:.1f} times slower than fp32 here: leave target.dtype, train.dtype and "
            "eval.speed_dtype at auto, which takes fp32"
        )
        return Finding(name, "warning", text, advice, facts)
    return Finding(name, "ok", text, facts=facts)


def _product(device: torch.device, dtype: torch.dtype) -> tuple[float, float]:
    """GFLOP/s of the best of some square layers, and how far the last one is from one in fp64, of its norm.

    A layer multiplies by a transposed weight, and some kernels are ten times as fast at that as at a plain product.
    """
    import torch
    from torch.nn.functional import linear

    side = SIDE[device.type]
    generator = torch.Generator().manual_seed(0)
    left, weight = (torch.randn(side, side, generator=generator).to(device, dtype) for _ in range(2))
    product = linear(left, weight)  # the first one also loads and tunes
    best_s, end = math.inf, time.perf_counter() + FOR_S
    while best_s == math.inf or time.perf_counter() < end:
        _wait(device)
        start = time.perf_counter()
        product = linear(left, weight)
        _wait(device)
        best_s = min(best_s, time.perf_counter() - start)
    exact = left[:8].double() @ weight.double().T
    error = float((product[:8].double() - exact).norm() / exact.norm())
    return 2 * side**3 / best_s / 1e9, error


def _wait(device: torch.device) -> None:
    import torch

    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _instructions() -> str:
    """Whether the processor has instructions that make bf16 fast."""
    facts = processor_facts()
    if not facts:
        return "instructions unknown"
    flags = facts.get("flags", "").split()
    found = [flag for flag in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if flag in flags]
    return ", ".join(found) or "no vector instructions known here"
