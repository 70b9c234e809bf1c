"""Where ranks find each other and learn what became of each other: a store of torch's.

Every rank says there who it is and what it was asked for, and whoever fails leaves its reason
there before it goes.  The store lives as long as the leader or its launcher does; a follower
ends with it, whatever it is doing.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable
from datetime import timedelta

import psutil

# It is public, and torch's own annotations do not say so.
from torch.distributed import Store  # type: ignore[attr-defined]

from ..errors import RankError

PATIENCE = 600.0
"""Seconds that the leader waits for other ranks."""
LOOK = 0.25
"""Seconds from one look for failures to the next, while waiting."""
POLL = 0.01
"""Seconds from one look for what is waited for to the next."""
LINGER = 5.0
"""Seconds that a follower stays after a failure, so that the leader can speak first."""
_SPOKEN = 1.0
"""Seconds that a follower stays when the leader ends because of a failure, which it still tells."""
_WORDS = 0.7
"""Seconds that whoever watches over ranks may take to find out how one ended."""
_DYING = 0.5
"""Seconds that a process which was killed may be seen for after its connections broke."""
_FOREVER = timedelta(days=365)
_FAILED = "failed"
_OVER = "over"


class Meeting:
    """One rank's view of the store.

    Args:
        connect: makes a connection to the store; each thread has its own, for a connection
            serves one at a time.
        rank, size: this rank's number, and how many there are.
        watch: says how another rank ended, or None while all is well; None where nobody knows.
        patience: seconds that the leader waits for others; followers wait as long as it lives.
        host: whoever the store lives and ends with.
        orphaned: what a follower still does when the leader is gone without a word.

    Attributes:
        connect: the same.
        pids: the ranks' processes, in their order, once they have met.
        round: what the leader has told so far, counted; a follower that cannot do its part says
            in which it is.
        lost: why the ranks cannot go on, once that is known.
    """

    def __init__(
        self,
        connect: Callable[[], Store],
        rank: int,
        size: int,
        *,
        watch: Callable[[], str | None] | None = None,
        patience: float = PATIENCE,
        host: str = "rank 0",
        orphaned: Callable[[], None] = lambda: None,
    ) -> None:
        self.rank, self.size = rank, size
        self.pids: list[int] = []
        self.round = 0
        self.lost: RankError | None = None
        self.patience = patience
        self.connect = connect
        self._store = connect()
        self._watch = watch
        self._host = host
        self._collected = 0
        self._hosts: list[str] = []
        if rank > 0:
            threading.Thread(target=_end_with, args=(connect, orphaned), daemon=True).start()

    def meet(self) -> None:
        """Wait for all ranks.

        Raises:
            RankError: one failed, or did not come.
        """
        people = self.collect(f"{os.getpid()} {socket.gethostname()}")
        met = [who.split(" ", 1) for who in people]
        self.pids, self._hosts = [int(pid) for pid, _ in met], [host for _, host in met]

    def collect(self, text: str) -> list[str]:
        """Every rank's text, in the order of the ranks, which all call this equally often.

        Raises:
            RankError: a rank failed, or did not answer.
        """
        number = self._collected
        self._collected += 1
        keys = [f"said/{number}/{rank}" for rank in range(self.size)]
        waiting = Waiting(self)
        try:
            self._store.set(keys[self.rank], text)
            while not self._store.check(keys):
                waiting.look(lambda: [r for r, key in enumerate(keys) if self._lacks(key)])
                time.sleep(POLL)
            return [self._store.get(key).decode() for key in keys]
        except RuntimeError as error:
            raise self.gone() from error

    def fail(self, reason: str) -> None:
        """Leave the reason for which this rank cannot go on; the first of all ranks counts."""
        with contextlib.suppress(RuntimeError):  # the others are gone already
            self._store.compare_set(_FAILED, "", f"rank {self.rank} failed: {reason}")

    def refuse(self, reason: str) -> None:
        """Say that this rank did not do what the leader told last; it waits for the next."""
        with contextlib.suppress(RuntimeError):
            self._store.set(self._refused(), f"rank {self.rank} failed: {reason}")

    def waits(self, what: str) -> None:
        """Say that it is not this rank that others wait for."""
        self._store.set(f"waits/{self.rank}", what)

    def late(self, what: str) -> list[int]:
        """The other ranks that have not said that they wait for the same."""
        others = [rank for rank in range(self.size) if rank != self.rank]
        keys = {rank: f"waits/{rank}" for rank in others}
        return [r for r, k in keys.items() if self._lacks(k) or self._store.get(k).decode() != what]

    def look(self, *, thoroughly: bool = False) -> None:
        """Find out whether a rank is known to have failed.

        Args:
            thoroughly: whether to look for processes, too, that ended without a word.

        Raises:
            RankError: one has.
        """
        try:
            words = self._words() or (self._dead() if thoroughly else None)
        except RuntimeError as error:
            raise self.gone() from error
        if words:
            raise self.losing(words)

    def gone(self) -> RankError:
        """The error for a connection that broke: with the reason, if that can be found out."""
        if self.lost is not None:
            return self.lost
        words = self._words_within(_WORDS if self._watch else 0.0)
        return self.losing(words or self._dead_within(_DYING) or "another rank ended")

    def explained(self, error: RankError) -> RankError:
        """A failure that another rank reported, with the reason that it leaves on its way out."""
        return self.lost or self.losing(self._words_within(_WORDS) or str(error))

    def losing(self, words: str) -> RankError:
        """Remember that the ranks cannot go on, and why."""
        self.lost = self.lost or RankError(words)
        return self.lost

    def over(self, *, failed: bool) -> None:
        """Let all followers end, whatever they are doing.

        Args:
            failed: whether that is because something went wrong.
        """
        with contextlib.suppress(RuntimeError):
            self._store.set(_OVER, "failed" if failed else "done")

    def _refused(self) -> str:
        return f"refused/{self.round}"

    def _lacks(self, key: str) -> bool:
        return not self._store.check([key])

    def _words(self) -> str | None:
        """What a rank that failed, or whoever watches over the ranks, says of it."""
        for key in (_FAILED, self._refused()):
            if not self._lacks(key):
                return str(self._store.get(key).decode())
        return self._watch() if self._watch else None

    def _words_within(self, seconds: float) -> str | None:
        """The words for a failure, as soon as there are some."""
        deadline = time.monotonic() + seconds
        try:
            while (words := self._words()) is None and time.monotonic() < deadline:
                time.sleep(POLL)
        except RuntimeError:
            return f"{self._host} ended"
        return words

    def _dead(self) -> str | None:
        """Which rank's process on this machine is no more."""
        for rank, (pid, host) in enumerate(zip(self.pids, self._hosts, strict=True)):
            if host == socket.gethostname() and not _runs(pid):
                return f"rank {rank} was killed, or ended without a word"
        return None

    def _dead_within(self, seconds: float) -> str | None:
        """The same of a process that may be about to end."""
        deadline = time.monotonic() + seconds
        while (words := self._dead()) is None and time.monotonic() < deadline:
            time.sleep(POLL)
        return words


class Waiting:
    """One wait for other ranks, and how long it may be."""

    def __init__(self, meeting: Meeting) -> None:
        self._meeting = meeting
        self._looked = time.monotonic()
        self.waited = 0.0

    def look(self, late: Callable[[], list[int]]) -> None:
        """See, now and then, whether waiting still makes sense.

        Args:
            late: the ranks that are waited for, as far as it can be told.

        Raises:
            RankError: a rank failed, or this has lasted too long.
        """
        now = time.monotonic()
        passed = now - self._looked
        if passed < LOOK:
            return
        # A process that is suspended meanwhile has not been waiting.
        self.waited += min(passed, 4 * LOOK)
        self._meeting.look()
        self._looked = time.monotonic()
        patience = self._meeting.patience
        if self._meeting.rank == 0 and self.waited > patience:
            who = " and ".join(f"rank {rank}" for rank in late()) or "another rank"
            raise self._meeting.losing(f"{who} did not answer for {patience:.0f} s")


def _end_with(connect: Callable[[], Store], orphaned: Callable[[], None]) -> None:
    """End this process when the leader says so, or is gone: also in the middle of something."""
    try:
        store = connect()
        store.wait([_OVER], _FOREVER)
        failed = store.get(_OVER) != b"done"
    except (RuntimeError, RankError):
        orphaned()
        os._exit(1)
    if failed:
        time.sleep(_SPOKEN)
    # Nothing here is worth keeping, and taking torch apart takes a second.
    os._exit(int(failed))


def _runs(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False
