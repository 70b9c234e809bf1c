"""Starting up without the garbage collector, which finds nothing then and takes half a second."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def uncollected(*, for_good: bool = False) -> Iterator[None]:
    """Make many objects that stay, without looking for garbage among them again and again.

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
