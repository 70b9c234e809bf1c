"""A limit of time and memory for programs that come with a model: its chat templates.

transformers renders them in jinja2's sandbox, which keeps them from Python's inner parts, but not
from endless loops, or from a text of a terabyte.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator

from ..view.terminal import handling

SECONDS = 5.0
"""Of the processor."""
MEMORY = 1 << 30
"""Bytes."""


class LimitError(Exception):
    """It took too long, or too much memory."""


class _Stop(BaseException):
    """The time is over; jinja2 goes on after what is an Exception, where it folds constants."""


@contextlib.contextmanager
def limited() -> Iterator[None]:
    """Let a part of the program take at most `SECONDS` and `MEMORY`.

    The time is limited on the main thread, where Python handles signals; memory while no other
    thread works, which would meet the limit too.  Systems that lack the means have no limit.

    Raises:
        LimitError: it took more.
    """
    try:
        with contextlib.ExitStack() as limits:
            _limit_time(limits)
            _limit_memory(limits)
            yield
    except _Stop:
        raise LimitError(f"takes more than {SECONDS:.0f} s") from None
    except MemoryError as error:
        raise LimitError(f"takes more than {MEMORY >> 30} GB of memory") from error


def _limit_time(limits: contextlib.ExitStack) -> None:
    def stop(*_: object) -> None:
        raise _Stop

    alone = threading.current_thread() is threading.main_thread()
    if alone and hasattr(signal, "setitimer"):
        limits.enter_context(handling(stop, signal.SIGPROF))
        limits.callback(signal.setitimer, signal.ITIMER_PROF, 0.0)
        signal.setitimer(signal.ITIMER_PROF, SECONDS)


def _limit_memory(limits: contextlib.ExitStack) -> None:
    try:
        import resource
    except ImportError:  # not POSIX
        return
    if len([each for each in threading.enumerate() if not each.daemon]) > 1:
        return
    import psutil  # 20 ms, which help does without

    before, most = resource.getrlimit(resource.RLIMIT_AS)
    wanted = psutil.Process().memory_info().vms + MEMORY
    if before == resource.RLIM_INFINITY or wanted < before:
        with contextlib.suppress(ValueError, OSError):  # macOS refuses any
            resource.setrlimit(resource.RLIMIT_AS, (wanted, most))
            limits.callback(resource.setrlimit, resource.RLIMIT_AS, (before, most))
