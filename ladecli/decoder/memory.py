"""Running out of memory: what counts as that, how to survive it, and what to try next."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

from .errors import NoMemoryError

P = ParamSpec("P")
T = TypeVar("T")

# CUDA and MPS say the first, torch's CPU allocator the next two (the latter on Windows), and
# cuBLAS the last.
_SAID = ("out of memory", "can't allocate memory", "not enough memory", "alloc_failed")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that there was no memory for something, on any device."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    said = str(error).lower()
    return isinstance(error, RuntimeError) and any(words in said for words in _SAID)


def attempt(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
    """What `work` returns; None if memory did not suffice for it.

    Then nothing that it made is alive any more, so that a smaller attempt has all the memory
    that there is.  `work` must leave what it changes as it was.
    """
    try:
        return work(*args, **kwargs)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
    # Only behind the block above is the error gone, and with it the frames that held tensors.
    torch.cuda.empty_cache()  # does nothing where CUDA is not in use
    return None


def try_forward(alone: bool, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
    """What a forward returns; None if memory did not suffice and a smaller one may be tried.

    Args:
        alone: whether it is this process's own affair.
        work: runs it; args and kwargs are for it.

    Raises:
        NoMemoryError: memory did not suffice, and other ranks are in the middle of this forward.
    """
    if alone:
        return attempt(work, *args, **kwargs)
    try:
        return work(*args, **kwargs)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise NoMemoryError(
            "no memory for a step on all ranks at once; a smaller --budget or --max-context takes"
            " less"
        ) from error


class Allowance:
    """How many tokens one forward may feed, as far as one generation has found out.

    Every generation starts with a new one.  To find the limits again costs it a few forwards
    that break off; to keep them would slow a whole session down for one bad moment, though
    texts get shorter and other programs end.

    Args:
        chunk: as many pending tokens as one forward feeds where memory suffices.

    Attributes:
        chunk: the most pending tokens: those of the prompt, say.
        width: the most tokens of a step; pending ones other than the current left out.
    """

    def __init__(self, chunk: int) -> None:
        self.chunk = chunk
        self.width = sys.maxsize

    def shrink(self, pending: int, width: int = 1) -> bool:
        """Allow half of the larger part of a forward that memory did not suffice for.

        Args:
            pending: its pending tokens, the current one included if it was a step.
            width: its other tokens and one more; 1 for a chunk of the prompt.

        Returns:
            Whether there is anything smaller left to try.
        """
        if pending > width:
            self.chunk = pending // 2
        elif width > 1:
            self.width = width // 2
        return max(pending, width) > 1
