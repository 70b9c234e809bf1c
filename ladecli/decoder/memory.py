"""Running out of memory: recognising it, surviving it, and what to try next."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

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
        width: tokens of a step, pending ones other than the current left out, likewise.

    Attributes:
        chunk: the most pending tokens, such as those of the prompt.
        width: the most tokens of a step, pending ones other than the current left out.
    """

    def __init__(self, chunk: int, width: int = sys.maxsize) -> None:
        self.chunk = chunk
        self.width = width

    def shrink(self, pending: int, width: int = 1) -> bool:
        """Halve the larger part of a forward that memory did not suffice for.

        Args:
            pending: its pending tokens, the current one included if it was a step.
            width: its other tokens and one more; 1 for a chunk of the prompt.

        Returns:
            Whether anything smaller is left to try.
        """
        if pending > width:
            self.chunk = pending // 2
        elif width > 1:
            self.width = width // 2
        return max(pending, width) > 1
