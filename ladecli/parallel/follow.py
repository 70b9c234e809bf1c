"""What a follower does: join, load, and decode what the leader decodes, until that ends it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from ..decoder.errors import DecoderError, NoMemoryError, RankError
from ..errors import LadeError, told
from ..settings import Request
from . import last_word
from .crew import Task
from .launcher import VARIABLE
from .place import Place, place_of
from .start import hush_torch, join, placed, variables

if TYPE_CHECKING:
    from ..decoder.parallel.meeting import Meeting
    from ..decoder.parallel.processes import Processes
    from ..session import Session

Opener = Callable[[Request], Callable[["Processes"], "Session"]]
"""Plans how to load the model of a request; what it returns loads it, for one rank of several."""


def run(request: Request, open_session: Opener) -> int:
    """Be the follower that the user's own torchrun has started; returns only if that failed.

    Args:
        request: what the user asked for, of every rank.
        open_session: plans, and loads, the model.

    Returns:
        The exit code.

    Raises:
        LadeError: this cannot be a rank; the leader says the same.
    """
    request.check()
    place = place_of(request)
    hush_torch()
    from ..decoder.parallel import store

    return follow(place, request, store.by_environment(), open_session)


def as_child(open_session: Opener) -> int:
    """Be a follower of `--parallel K`; returns only if that failed.

    Args:
        open_session: plans, and loads, the model.

    Returns:
        The exit code.
    """
    told = json.loads(os.environ.pop(VARIABLE))
    host, port, size = told["host"], int(told["port"]), int(told["size"])
    # A leader that was killed leaves it behind.
    tidy = partial(shutil.rmtree, told["folder"], ignore_errors=True)
    # torchrun counts those that it has started, and the leader comes before them.
    rank = int(os.environ["LOCAL_RANK"]) + 1
    place = Place(rank, size, rank, size)
    os.environ.update(variables(place, host, port))
    from ..decoder.parallel import store

    found = store.visited(host, port, rank, size, orphaned=tidy)
    return follow(place, Request(**told["request"]), found, open_session)


def follow(place: Place, request: Request, meeting: Meeting, open_session: Opener) -> int:
    """Do what the leader does for as long as it lives; returns only if something failed.

    The leader speaks for all: what goes wrong here is left for it to tell.

    Returns:
        The exit code.
    """
    from ..decoder.parallel.meeting import LINGER

    # torchrun passes Ctrl-C on to every rank, and the leader decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        here, device = placed(request, place)
        load = open_session(replace(here, parallel=place.size))
        processes = join(place, request, device, meeting).processes
        serve(processes, load(processes))
    except BaseException as error:
        # Also where it is no news: the first reason that was left counts.
        if not isinstance(error, RankError):
            meeting.fail(told(error))
            if not place.launched and not isinstance(error, LadeError | DecoderError):
                # To the log; under the user's own torchrun it would bury what the leader says.
                traceback.print_exc(file=sys.stderr)
        last_word.leave(f"rank {place.rank}: {told(error)}")
        # torchrun ends the other ranks when one has ended; the leader shall speak before that.
        time.sleep(LINGER)
    return LadeError.exit_code


def serve(processes: Processes, session: Session) -> None:
    """Decode every answer that the leader decodes.

    Raises:
        RankError: the leader is gone, or another rank.
    """
    while True:
        task: Task = processes.hear()
        if task.drafts is not None:
            session.drafts = task.drafts
        try:
            for _event in session.stream(task.prompt, task.settings):
                pass
        except (RankError, NoMemoryError):
            raise
        except (DecoderError, LadeError) as error:
            # Usually the leader fails alike and goes on.  Where it waits for this rank, this is
            # what it finds.
            processes.meeting.refuse(told(error))
