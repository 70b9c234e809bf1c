"""What goes wrong on a device: memory runs out, and what to try next; the device is lost."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

from .errors import DeviceLostError, NoMemoryError

P = ParamSpec("P")
T = TypeVar("T")

# Of CUDA and MPS, of torch's CPU allocator (the second on Windows), and of cuBLAS.
_MESSAGES = ("out of memory", "can't allocate memory", "not enough memory", "alloc_failed")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out, on any device."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    message = str(error).lower()
    return isinstance(error, RuntimeError) and any(words in message for words in _MESSAGES)


def attempt(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
    """What `work` returns; None if memory ran out.

    Then nothing that it made is alive any more, so that a smaller attempt has all the memory
    there is.  `work` must leave what it changes as it was.
    """
    try:
        return work(*args, **kwargs)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
    # Only after the block above are the error and the frames that held tensors gone.
    torch.cuda.empty_cache()  # does nothing where CUDA is not in use
    return None


class Backoff:
    """How many tokens one forward may feed, as far as one generation has found out.

    Every generation starts with a new one: to keep the limits would slow a whole session down
    for one bad moment.

    Args:
        chunk: pending tokens of one forward where memory suffices.
        retries: whether smaller forwards may be tried at all.

    Attributes:
        chunk: the most pending tokens, such as those of the prompt.
        width: the most tokens of a step, pending ones other than the current left out.
        retries: as given.
    """

    def __init__(self, chunk: int, *, retries: bool = True) -> None:
        self.chunk = chunk
        self.width = sys.maxsize
        self.retries = retries

    def shrink(self, pending: int, width: int = 1) -> bool:
        """Halve the larger part of a forward that memory did not suffice for.

        Args:
            pending: its pending tokens, the current one included if it was a step.
            width: its other tokens and one more; 1 for a chunk of the prompt.

        Returns:
            Whether anything smaller is left to try.

        Raises:
            NoMemoryError: smaller forwards may not be tried.
        """
        if not self.retries:
            raise NoMemoryError
        if pending > width:
            self.chunk = pending // 2
        elif width > 1:
            self.width = width // 2
        return max(pending, width) > 1


def check_device(device: torch.device, error: BaseException) -> None:
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
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
