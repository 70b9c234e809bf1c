"""Ranks as threads of one process: what several ranks would do, without the devices for it.

Time means nothing here.  Everything else is as it is between processes: which rank feeds what,
what they tell one another, and the text.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from ..errors import RankError

T = TypeVar("T")


class _Table:
    """Where the threads lay their numbers down, and meet."""

    def __init__(self, size: int) -> None:
        self.told: list[list[int]] = [[] for _ in range(size)]
        self.barrier = threading.Barrier(size)


class Threads:
    """The transport of one simulated rank.

    Attributes:
        rank: its number.
        size: how many there are.
        sent: how many numbers it has told the others.
        gathered: how often it did.
    """

    def __init__(self, rank: int, table: _Table) -> None:
        self.rank = rank
        self.size = len(table.told)
        self.sent = 0
        self.gathered = 0
        self._table = table

    def gather(self, numbers: Sequence[int]) -> list[list[int]]:
        """Every rank's numbers, in the order of the ranks.

        Raises:
            RankError: another rank has ended.
        """
        self.sent += len(numbers)
        self.gathered += 1
        self._table.told[self.rank] = list(numbers)
        try:
            self._table.barrier.wait()
        except threading.BrokenBarrierError:
            raise RankError("another rank has ended") from None
        told = list(self._table.told)
        # Nobody lays the next numbers down before all have read these; whoever ends now has.
        with contextlib.suppress(threading.BrokenBarrierError):
            self._table.barrier.wait()
        return told


def simulate(size: int, work: Callable[[Threads], T]) -> list[T]:
    """Let `work` run on every rank at the same time.

    Args:
        size: how many ranks.
        work: what one rank does with its transport.

    Returns:
        What each returned.

    Raises:
        Exception: what the first of them raised that did not merely lose the others.
    """
    table = _Table(size)

    def one(rank: int) -> T:
        try:
            return work(Threads(rank, table))
        except BaseException:
            table.barrier.abort()
            raise

    with ThreadPoolExecutor(size) as pool:
        futures = [pool.submit(one, rank) for rank in range(size)]
    errors = [error for future in futures if (error := future.exception()) is not None]
    for error in sorted(errors, key=lambda error: isinstance(error, RankError)):
        raise error
    return [future.result() for future in futures]
