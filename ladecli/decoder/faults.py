"""Faults of a device: memory runs out, or the device is lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

from .errors import DeviceLostError

P = ParamSpec("P")
T = TypeVar("T")

# Of CUDA and MPS, of torch's CPU allocator (the second on Windows), and of cuBLAS.
_MESSAGES = ("out of memory", "can't allocate memory", "not enough memory", "alloc_failed")


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error says that memory ran out, on any device."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    message = str(error).lower()
    return isinstance(error, RuntimeError) and any(words in message for words in _MESSAGES)


def attempt(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
    """Return what `work` returns; None if memory ran out.

    Then nothing that it made is alive any more, so that a smaller attempt has all of the memory.
    `work` must leave what it changes as it was.
    """
    try:
        return work(*args, **kwargs)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
    # Only after the block above are the error and the frames that held tensors gone.
    torch.cuda.empty_cache()  # does nothing where CUDA is not in use
    return None


def check_alive(device: torch.device, error: BaseException) -> None:
    """Tell an error from a fault that the process cannot recover from, such as a kernel that
    wrote where it must not.

    Raises:
        DeviceLostError: the device answers nothing any more.
    """
    if device.type != "cuda" or not isinstance(error, RuntimeError):
        return
    try:
        torch.cuda.synchronize(device)
    except RuntimeError as fault:
        why = reason_of(fault)
        # A capture that is still under way is no fault.
        if "captur" in why:
            return
        raise DeviceLostError(
            f"the GPU met a fault that ends this process ({why}); start again, and if it comes"
            " back, with --no-kernels or --no-cuda-graphs"
        ) from error


def reason_of(error: BaseException) -> str:
    """An error in one line."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    # TorchScript puts its calls first.
    return lines[-1].removeprefix("RuntimeError: ") if "TorchScript" in lines[0] else lines[0]
