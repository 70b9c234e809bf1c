"""Functions that Numba compiles to machine code when they are first called.

What is compiled is kept on the disk, so that only the first run of a version on a machine takes
the seconds that the compiler needs.  Numba looks at the one file that holds a function to see
whether that is still up to date: functions that call each other, and the constants that they
use, belong in one file.

With `NUMBA_DISABLE_JIT=1` they run as they are written, for a debugger to follow: their whole
numbers are those of NumPy then, and wrap around as in machine code.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

import numpy as np
from numba import njit
from numba.core.caching import FunctionCache

Function = TypeVar("Function", bound=Callable[..., object])


class _Kept(FunctionCache):
    """Code on the disk, without which everything works as well: the compiler is asked again."""

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """What was compiled for these types; None where there is nothing that can be read."""
        try:
            return super().load_overload(sig, target_context)
        except Exception:
            # Files may have been cut off, by a full disk say: they must not stay in the way.
            with contextlib.suppress(Exception):
                self.flush()
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep what was compiled, if there is room."""
        with contextlib.suppress(Exception):
            super().save_overload(sig, data)


def compiled(function: Function) -> Function:
    """The function as machine code, for whatever types of arguments it is called with."""
    made: Any = njit(error_model="numpy")(function)
    if made is function:  # the compiler is switched off
        return _as_written(function)
    # As `cache=True` does.  Where no folder may be written to, every process compiles for itself.
    with contextlib.suppress(RuntimeError):
        made._cache = _Kept(function)
    return cast(Function, made)


def inlined(function: Function) -> Function:
    """A part of compiled functions, whose code goes to wherever it is called.

    Arrays that are handed to a function are counted in and out, which took more than half of the
    time of some.
    """
    return cast(Function, njit(inline="always", error_model="numpy")(function))


def _as_written(function: Function) -> Function:
    """The function in Python, with what machine code makes of its arguments."""

    @wraps(function)
    def run(*args: Any) -> object:
        with np.errstate(all="ignore"):
            return function(*map(_named, args))

    return cast(Function, run)


def _named(value: Any) -> Any:
    """An argument, where fields of records are attributes."""
    if isinstance(value, tuple):
        return (*map(_named, value),)
    records = isinstance(value, np.ndarray) and value.dtype.names is not None
    return value.view(np.recarray) if records else value
