"""Faults of a device: memory runs out, or the device is lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

from .errors import DeviceLostError

P = ParamSpec("P")
T = TypeVar("T")

# What CUDA and MPS say, torch's CPU allocator (the third on Windows), and cuBLAS.
_MESSAGES = ("out of memory", "can't allocate memory", "not enough memory", "alloc_failed")


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error says that memory ran out, on any device."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    message = str(error).lower()
    return isinstance(error, RuntimeError) and any(words in message for words in _MESSAGES)


def attempt(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
    """Return what `work` returns; None if memory ran out.

    In that case nothing that `work` allocated is alive any more, so that a smaller attempt has all
    memory.  `work` must not leave anything half changed.
    """
    try:
        return work(*args, **kwargs)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
    # Here, after the block above, the error and the frames that hold tensors are gone.
    torch.cuda.empty_cache()  # does nothing unless CUDA is in use
    return None


def check_alive(device: torch.device, error: BaseException) -> None:
    """Check that the device still works after an error.

    Raises:
        DeviceLostError: it met a fault, such as a kernel's write to a wrong address.
    """
    if device.type != "cuda" or not isinstance(error, RuntimeError):
        return
    try:
        torch.cuda.synchronize(device)
    except RuntimeError as fault:
        why = reason_of(fault)
        # The device cannot be asked during a capture, but that is no fault.
        if "captur" in why:
            return
        raise DeviceLostError(
            f"the GPU failed, which ends this process ({why}); start again, and if it comes"
            " back, with --no-kernels or --no-cuda-graphs"
        ) from error


def reason_of(error: BaseException) -> str:
    """Return an error's message as one line."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    # TorchScript lists its calls first.
    return lines[-1].removeprefix("RuntimeError: ") if "TorchScript" in lines[0] else lines[0]
