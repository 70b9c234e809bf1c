"""Doing without the garbage collector for a while: it takes time, and comes at any time."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def uncollected(*, for_good: bool = False) -> Iterator[None]:
    """Collect no garbage meanwhile.

    Many objects that stay can be made then without being looked at again and again; and nothing is
    destroyed where that would do harm.

    Args:
        for_good: whether all that is there in the end stays until the program ends, as modules
            do: nobody looks at it ever again.  Not where a model is: cycles keep it, and with it
            its memory.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if for_good:
            gc.freeze()
        if was_on:
            gc.enable()
