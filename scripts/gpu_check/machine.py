"""What machine this is, and what it can do at best: copies and products, measured here."""

from __future__ import annotations

import gc
import os
import platform
import subprocess
from typing import Any

import torch
import transformers

from .clock import Clock, middle

ASKED = "driver_version,clocks.sm,clocks.mem,clocks.max.sm,power.limit,temperature.gpu"


def facts(device: torch.device) -> dict[str, Any]:
    """What figures depend on."""
    found: dict[str, Any] = {
        "device": str(device),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "triton": _version("triton"),
        "flash_attn": _version("flash_attn"),
        "cores": os.cpu_count(),
    }
    if device.type == "cuda":
        seen = torch.cuda.get_device_properties(device)
        found |= {
            "gpu": seen.name,
            "memory_bytes": seen.total_memory,
            "multiprocessors": seen.multi_processor_count,
            "capability": f"{seen.major}.{seen.minor}",
            "cuda": torch.version.cuda,
            "nvidia_smi": _smi(),
        }
    return found


def name_of(device: torch.device) -> str:
    """A GPU's name as that of a file: "NVIDIA H200" is nvidia-h200."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    return "-".join("".join(c if c.isalnum() else " " for c in name.lower()).split())


def copy_bandwidth(device: torch.device, clock: Clock, size: int, runs: int) -> dict[str, Any]:
    """Bytes per second of a copy on the device; bytes read and bytes written both count.

    Args:
        device: the one in question.
        clock: its clock.
        size: bytes of the tensor that is copied.
        runs: of which the median counts.
    """
    source = torch.randn(size // 4, device=device)
    target = torch.full_like(source, float("nan"))
    seconds = clock.burst(lambda: target.copy_(source), runs)
    if not torch.equal(source[-1000:], target[-1000:]):
        raise RuntimeError("the copy is not what was copied")
    return {"bytes": 2 * size, "seconds": seconds, "rate": 2 * size / middle(seconds)}


def matmul_rate(device: torch.device, clock: Clock, size: int, runs: int) -> dict[str, Any]:
    """Operations per second of a product of two bf16 matrices of random numbers."""
    left, right = (torch.randn(size, size, device=device).bfloat16() for _ in "lr")
    out = torch.empty_like(left)
    seconds = clock.burst(lambda: torch.mm(left, right, out=out), runs)
    operations = 2 * size**3
    return {"size": size, "seconds": seconds, "rate": operations / middle(seconds)}


def empty(device: torch.device) -> None:
    """Give back all memory of the device that nobody uses; no captured step may be alive.

    Each capture has a stream of its own, and cuBLAS a workspace for every stream there was.
    """
    gc.collect()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        clear = getattr(torch._C, "_cuda_clearCublasWorkspaces", None)
        if clear is not None:
            clear()
        torch.cuda.empty_cache()


def free_bytes(device: torch.device) -> int | None:
    """Memory of the device that nobody has taken; None off CUDA."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else None


def _version(package: str) -> str | None:
    try:
        return str(__import__(package).__version__)
    except Exception:  # broken packages raise anything
        return None


def _smi() -> str | None:
    """What the driver says of the first GPU; asked only, nothing is set."""
    command = ["nvidia-smi", f"--query-gpu={ASKED}", "--format=csv,noheader", "--id=0"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
