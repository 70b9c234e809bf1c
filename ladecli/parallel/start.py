"""The leader: from a request to ranks that decode, and their end, however that comes about.

Followers of `--parallel K` are processes of their own.  torch's launchers do not fit a program
whose rank 0 is there already and has the terminal: they give every rank a session of its own, log
to its stderr, and start only when torch is imported.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from multiprocessing.context import SpawnProcess
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from ..decoder.errors import RankError
from ..errors import UsageError
from ..options import Request
from .follow import Opener, Task, run_child
from .place import Place, cores, launched, place_of, placed

if TYPE_CHECKING:
    from ..decoder.drafting.memory import DraftMemory
    from ..decoder.parallel.groups import LookaheadParallel, TensorParallel
    from ..decoder.parallel.transport import DistributedTransport
    from ..session import Settings

_TRIAL_RANKS = 8
"""Ranks that may share fewer cores, to try out what a machine with GPUs does."""
_LOOPBACK = {"linux": "lo", "darwin": "lo0"}


@dataclass(frozen=True, slots=True)
class Leader:
    """Rank 0, with other ranks on their way; or a process that is alone.

    Attributes:
        request: on this rank's device.
        ranks: to be connected; None where this process is alone.
        notice: what the user should know before the ranks start, or None.
    """

    request: Request
    ranks: DistributedTransport | None = None
    notice: str | None = None


@contextlib.contextmanager
def started(request: Request, open_session: Opener) -> Iterator[Leader]:
    """Lead as many ranks as the request asks for, or as torchrun started.

    They start while the caller prepares, and `follow.connect` waits for them.  However the block
    ends, the followers end with it.

    Args:
        request: of the user, checked.
        open_session: how followers open theirs; a function of a module, which they import.

    Raises:
        UsageError: this machine has no room for that many ranks.
        RankError: a rank failed.
    """
    place = place_of(request)
    if place.size == 1:
        yield Leader(request)
        return
    with contextlib.ExitStack() as stack:
        meeting, failure = "env://", None
        if not place.launched:
            _check_number(request, place)
            os.environ |= _variables(place)
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="lade-"))
            meeting = (Path(folder) / "ranks").as_uri()
            followers = _followers(place, (request, open_session, meeting, folder))
            failure = stack.enter_context(followers)
        from ..decoder.parallel.transport import DistributedTransport

        ranks = DistributedTransport(place.rank, place.size, meeting, failure)
        stack.callback(ranks.close)
        yield Leader(placed(request, place), ranks, _notice(request, place))


class Followers:
    """The followers of a leader that has joined them.

    Args:
        ranks: how to reach them.
        group: the same ranks, as they decode.
        split: whether each holds a part of the model, so that every answer needs all of them.
    """

    def __init__(
        self,
        ranks: DistributedTransport,
        group: LookaheadParallel | TensorParallel,
        *,
        split: bool = False,
    ) -> None:
        self._ranks = ranks
        self._group = group
        self._split = split
        self._known: DraftMemory | None = None
        if launched():
            _end_by_error(ranks)

    def takes_part(self, settings: Settings) -> bool:
        """Whether an answer is decoded by all ranks, or by the leader alone."""
        return self._split or settings.strategy == "lookahead"

    @contextlib.contextmanager
    def answering(
        self, prompt: Sequence[int], settings: Settings, drafts: DraftMemory
    ) -> Iterator[None]:
        """Let the followers decode an answer while the leader does, if they take part.

        Raises:
            RankError: a rank is gone.
        """
        if not self.takes_part(settings):
            yield
            return
        unknown = None if drafts is self._known else drafts
        self._known = None
        begun = self._group.begun
        try:
            self._ranks.broadcast(Task(tuple(prompt), settings, unknown))
            yield
        except GeneratorExit:
            self._known = drafts
            raise
        except RankError as error:
            raise self._ranks.lose(str(error)) from error
        except BaseException as error:
            if self._group.begun == begun:  # followers wait for an answer that does not begin
                lost = "an answer was interrupted before it began; start the ranks again"
                raise self._ranks.lose(lost) from error
            # A sum that ranks of a split model compute together breaks off where one has ended.
            if isinstance(error, RuntimeError) and (rank_error := self._ranks.explain()):
                raise rank_error from error
            raise
        self._known = drafts


@contextlib.contextmanager
def _followers(
    place: Place, task: tuple[Request, Opener, str, str]
) -> Iterator[Callable[[], str | None]]:
    """The processes of ranks 1 to K - 1, which end with the block, or when the leader is killed.

    Args:
        place: of the leader.
        task: what each of them is given, see `follow.run_child`.

    Yields:
        What tells how the first one that ended did; it gives None while all run.
    """
    spawn = multiprocessing.get_context("spawn")
    last_words, theirs = spawn.Pipe(duplex=False)
    followers: list[SpawnProcess] = []

    def failure() -> str | None:
        codes = [process.exitcode for process in followers]
        for rank, code in enumerate(codes, start=1):
            if code is not None and code < 0:
                name = signal.Signals(-code).name
                why = "; the system does so when memory runs out" if name == "SIGKILL" else ""
                return f"rank {rank} was killed ({name}{why})"
        if last_words.poll():
            return "rank {} failed: {}".format(*last_words.recv())
        ended = (rank for rank, code in enumerate(codes, start=1) if code is not None)
        return next((f"rank {rank} ended" for rank in ended), None)

    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # followers inherit that
    try:
        for rank in range(1, place.size):
            arguments = replace(place, rank=rank, local_rank=rank), *task, theirs
            process = spawn.Process(target=run_child, args=arguments, daemon=True)
            process.start()
            followers.append(process)
        signal.signal(signal.SIGINT, before)
        yield failure
    finally:
        for process in followers:  # they have nothing to save
            process.kill()
            process.join()


def _check_number(request: Request, place: Place) -> None:
    """Refuse more ranks than this machine can run at a useful speed."""
    from .. import device

    most = max(_TRIAL_RANKS, cores())
    if place.size > most and device.detect(request.device).kind != "cuda":
        raise UsageError(
            f"--parallel {place.size} asks for {place.size} processes, and this machine has"
            f" {cores()} core{'s' if cores() > 1 else ''} and not as many GPUs; use at most {most}"
        )


def _notice(request: Request, place: Place) -> str | None:
    """What ranks that share a device are good for."""
    from .. import device

    kind = device.detect(request.device).kind
    if kind == "cuda" or place.local_size == 1:
        return None
    shared = "the processor" if kind == "cpu" else "one GPU"
    return f"{place.local_size} ranks share {shared}: good for trying it out, not for speed"


def _variables(place: Place) -> dict[str, str]:
    """What torchrun would set for rank 0, and followers inherit."""
    size = str(place.size)
    found = {"RANK": "0", "WORLD_SIZE": size, "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": size}
    threads = str(max(cores() // place.size, 1))
    found["OMP_NUM_THREADS"] = os.environ.get("OMP_NUM_THREADS", threads)
    # Otherwise gloo asks for the machine's name, which may lead elsewhere.
    if loopback := os.environ.get("GLOO_SOCKET_IFNAME") or _LOOPBACK.get(sys.platform):
        found["GLOO_SOCKET_IFNAME"] = loopback
    return found


def _end_by_error(ranks: DistributedTransport) -> None:
    """Let SIGTERM, by which torchrun ends the ranks when one has failed, raise `RankError`.

    So the leader keeps the text and says why it ends.
    """

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        if ranks.lost is None:
            raise ranks.lose("another rank ended; torchrun's summary names it")

    signal.signal(signal.SIGTERM, on_signal)
