"""A limit of time and memory for programs that come with a model: its chat templates.

transformers renders them in jinja2's sandbox, which keeps them from Python's inner parts, but not
from endless loops, or from a text of a terabyte.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator

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
        with _in_time(), _in_memory():
            yield
    except _Stop:
        raise LimitError(f"takes more than {SECONDS:.0f} s") from None
    except MemoryError as error:
        raise LimitError(f"takes more than {MEMORY >> 30} GB of memory") from error


@contextlib.contextmanager
def _in_time() -> Iterator[None]:
    alone = threading.current_thread() is threading.main_thread()
    if not alone or not hasattr(signal, "setitimer"):
        yield
        return

    def stop(*_: object) -> None:
        raise _Stop

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        signal.signal(signal.SIGPROF, before)


@contextlib.contextmanager
def _in_memory() -> Iterator[None]:
    try:
        import resource
    except ImportError:  # not POSIX
        resource = None  # type: ignore[assignment]
    working = [each for each in threading.enumerate() if not each.daemon]
    if resource is None or len(working) > 1:
        yield
        return
    import psutil  # 20 ms, which help does without

    before, most = resource.getrlimit(resource.RLIMIT_AS)
    wanted = psutil.Process().memory_info().vms + MEMORY
    lower = before == resource.RLIM_INFINITY or wanted < before
    with contextlib.ExitStack() as stack:
        if lower:
            # macOS refuses any.
            with contextlib.suppress(ValueError, OSError):
                resource.setrlimit(resource.RLIMIT_AS, (wanted, most))
                stack.callback(resource.setrlimit, resource.RLIMIT_AS, (before, most))
        yield
