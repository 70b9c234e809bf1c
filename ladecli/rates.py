"""How fast a device reads memory and multiplies, measured in a moment."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import lru_cache

import torch

from .device import Device
from .profiles.derive import Rates

SECONDS = 0.15
"""Each of the two measurements takes about this long."""
_LARGE = {"cuda": (256 << 20, 4096), "mps": (128 << 20, 2048), "cpu": (64 << 20, 512)}
"""By kind of device, bytes to copy and rows of a square product: well beyond its caches."""


@lru_cache(maxsize=16)
@torch.inference_mode()
def measure_rates(device: Device, dtype: str, seconds: float = SECONDS) -> Rates:
    """Copy a large tensor and multiply two large matrices, over and over.

    Args:
        device: where.
        dtype: the type that is multiplied, "bfloat16" for example.
        seconds: how long each of the two may take.

    Returns:
        The best rates seen: whatever disturbs a measurement makes it slower.
    """
    size, rows = _LARGE[device.kind]
    place = torch.device(device.torch_name)
    copy, product = _copy(size, place), _product(rows, getattr(torch, dtype), place)
    # A copy reads and writes every byte.
    bandwidth = 2 * size / _fastest(copy, device, seconds)
    arithmetic = 2.0 * rows**3 / _fastest(product, device, seconds)
    return Rates(bandwidth, arithmetic, f"measured here, {device.label}")


def _copy(size: int, place: torch.device) -> Callable[[], object]:
    source = torch.zeros(size, dtype=torch.uint8, device=place)
    target = torch.empty_like(source)
    return lambda: target.copy_(source)


def _product(rows: int, kind: torch.dtype, place: torch.device) -> Callable[[], object]:
    factor = torch.randn(rows, rows, device=place).to(kind)
    out = torch.empty_like(factor)
    return lambda: torch.mm(factor, factor, out=out)


def _fastest(work: Callable[[], object], device: Device, seconds: float) -> float:
    """Seconds of the fastest of many calls, the first of which do not count."""
    wait = _barrier(device)
    for _ in range(2):
        work()
    wait()
    best, end = float("inf"), time.perf_counter() + seconds
    while True:
        began = time.perf_counter()
        work()
        wait()
        now = time.perf_counter()
        best = min(best, now - began)
        if now >= end:
            return best


def _barrier(device: Device) -> Callable[[], None]:
    """What to call to know that the device has finished."""
    if device.kind == "cuda":
        return lambda: torch.cuda.synchronize(device.torch_name)
    return torch.mps.synchronize if device.kind == "mps" else lambda: None
