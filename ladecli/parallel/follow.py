"""The tasks that the leader sends, and what a follower does with them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..decoder.errors import DecoderError, NoMemoryError, RankError
from ..errors import LadeError, told
from ..options import Request
from .place import Place, place_of, report_failure
from .start import connect, placed

if TYPE_CHECKING:
    from ..decoder.drafting.memory import DraftMemory
    from ..decoder.parallel.groups import LookaheadParallel, TensorParallel
    from ..decoder.parallel.transport import DistributedTransport
    from ..session import Session, Settings

Opener = Callable[[Request], Callable[["DistributedTransport"], "Session"]]
"""Plans how to load a request's model; what it returns loads it, for one rank of several."""
_LINGER = 5.0
"""Seconds that a failed follower of torchrun waits, so that the leader speaks before all end."""


@dataclass(frozen=True, slots=True)
class Task:
    """An answer that all ranks decode.

    Attributes:
        prompt: token ids.
        settings: how to decode it.
        drafts: the leader's draft memory; None where the follower has learned the same.
    """

    prompt: tuple[int, ...]
    settings: Settings
    drafts: DraftMemory | None


class Followers:
    """The followers, as the leader sees them.

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
            raise self._ranks.explain(str(error)) from error
        except BaseException as error:
            if self._group.begun == begun:  # followers wait for an answer that does not begin
                lost = "an answer was interrupted before it began; start the ranks again"
                raise self._ranks.lose(lost) from error
            raise
        self._known = drafts


def run(request: Request, open_session: Opener) -> int:
    """Be a follower that the user's own torchrun started.

    Returns:
        The exit code.

    Raises:
        LadeError: the request cannot be followed; the leader says the same.
    """
    request.check()
    return _follow(place_of(request), request, open_session)


def as_child(open_session: Opener) -> int:
    """Be a follower of `--parallel K`, which gets its request by standard input.

    Returns:
        The exit code.
    """
    request = Request(**json.loads(sys.stdin.readline()))

    def end_with_leader() -> None:
        sys.stdin.read()  # until the leader is gone
        os._exit(1)

    threading.Thread(target=end_with_leader, daemon=True).start()
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    return _follow(Place(rank, size, rank, size), request, open_session)


def _follow(place: Place, request: Request, open_session: Opener) -> int:
    """Decode what the leader decodes until it ends; returns the exit code."""
    # torchrun passes Ctrl-C on to all ranks, and the leader decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    from ..decoder.parallel.transport import DistributedTransport

    ranks = None
    try:
        ranks = DistributedTransport(place.rank, place.size)
        here, device = placed(request, place)
        load = open_session(replace(here, parallel=place.size))
        connect(ranks, place, request, device)
        _serve(ranks, load(ranks))
        ranks.close()
    except BaseException as error:
        if not isinstance(error, LadeError | DecoderError):
            traceback.print_exc()
        if ranks is not None and not isinstance(error, RankError):
            ranks.fail(told(error))
        report_failure(f"rank {place.rank}: {told(error)}")
        if place.launched:
            time.sleep(_LINGER)
        return LadeError.exit_code
    return 0


def _serve(ranks: DistributedTransport, session: Session) -> None:
    """Decode every answer that the leader decodes."""
    while (task := ranks.broadcast()) is not None:
        if task.drafts is not None:
            session.drafts = task.drafts
        try:
            for _event in session.stream(task.prompt, task.settings):
                pass
        except (RankError, NoMemoryError):
            raise
        except (DecoderError, LadeError) as error:
            # The leader usually fails alike and goes on; where it waits, it finds this.
            ranks.fail(told(error))
