"""A follower, which decodes what the leader decodes; and what all ranks compare before that."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import multiprocessing
import os
import platform
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING

from ..decoder.errors import DecoderError, NoMemoryError, RankError
from ..errors import LadeError, told
from ..options import Request
from .place import Place, place_of, placed

if TYPE_CHECKING:
    from ..decoder.drafting.memory import DraftMemory
    from ..decoder.parallel.transport import DistributedTransport
    from ..session import Session, Settings

Opener = Callable[[Request], Callable[["DistributedTransport"], "Session"]]
"""Plans how to load a request's model; what it returns loads it, for one rank of several."""
_LINGER = 2.0
"""Seconds until a rank that failed ends, and torchrun all others: the leader speaks first."""
_MAY_DIFFER = {
    *("system", "pool_file", "color", "stats", "trace", "svg", "html", "quiet", "offline"),
    *("origins", "parallel", "device"),
}
"""Options that only the leader acts on, and those that are made each rank's own."""


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


def run(request: Request, open_session: Opener) -> int:
    """Be a follower that the user's own torchrun started.

    Returns:
        The exit code.

    Raises:
        LadeError: the request cannot be followed; the leader says the same.
    """
    request.check()
    place = place_of(request)
    try:
        _follow(place, request, open_session, "env://")
    except BaseException as error:
        if not isinstance(error, RankError):  # those are the leader's to report
            print(f"lade: rank {place.rank} failed: {told(error)}", file=sys.stderr)
        time.sleep(_LINGER)
        return LadeError.exit_code
    return 0


def run_child(
    place: Place,
    request: Request,
    open_session: Opener,
    meeting: str,
    folder: str,
    last_words: Connection,
) -> None:
    """Be a follower that the leader started, and end the process.

    Args:
        place: of this process.
        request: of the user.
        open_session: opens the session.
        meeting: where the ranks find each other.
        folder: the leader's; deleted should the leader be killed.
        last_words: takes this rank's number and why it failed.
    """
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)

    def end_with_leader() -> None:
        leader = multiprocessing.parent_process()
        assert leader is not None
        leader.join()
        shutil.rmtree(folder, ignore_errors=True)
        os._exit(1)

    threading.Thread(target=end_with_leader, daemon=True).start()
    os.environ |= {"RANK": str(place.rank), "LOCAL_RANK": str(place.local_rank)}
    try:
        _follow(place, request, open_session, meeting)
    except BaseException as error:
        if not isinstance(error, RankError):
            last_words.send((place.rank, told(error)))
    os._exit(1)  # the leader ends this process, unless it failed


def connect(ranks: DistributedTransport, request: Request) -> None:
    """Connect with the other ranks, and compare versions, options and devices with theirs.

    Args:
        ranks: not connected before.
        request: on this rank's device.

    Raises:
        RankError: a rank failed, or differs.
    """
    from .. import device

    here = device.detect(request.device)
    ranks.connect(here.torch_name, split=request.parallel_mode == "tensor")
    packages = {"lade": "ladecli", "torch": "torch", "transformers": "transformers"}
    mine = {name: importlib.metadata.version(package) for name, package in packages.items()}
    mine |= {"Python": platform.python_version(), "device": here.kind}
    for name in sorted({each.name for each in fields(Request)} - _MAY_DIFFER):
        mine[name.replace("_", "-")] = getattr(request, name)
    _compare(ranks, mine)


def compare_models(ranks: DistributedTransport, session: Session, *, split: bool) -> None:
    """Make sure that all ranks have loaded the same model; each of them calls this.

    Args:
        ranks: connected.
        session: with the model.
        split: whether each rank holds another part of the weights.

    Raises:
        RankError: they have not.
    """
    from .. import pool_file
    from ..decoder.parallel.transport import weights_digest

    loaded = session.loaded
    config = loaded.model.config.to_dict()
    for name in ("_name_or_path", "transformers_version"):  # the same model in another folder
        config.pop(name, None)
    text = json.dumps(config, sort_keys=True, default=str)
    mine = {
        "dtype": str(loaded.model.dtype),
        "a model configuration": hashlib.sha256(text.encode()).hexdigest()[:8],
        "a tokenizer": pool_file.fingerprint(loaded.tokenizer)[:8],
        "weights": "" if split else weights_digest(loaded.model)[:8],
        "max-context": session.decoder.max_context,
    }
    _compare(ranks, mine)


def _compare(ranks: DistributedTransport, mine: Mapping[str, object]) -> None:
    """Gather every rank's fingerprint; a `RankError` names the first difference."""
    found = ranks.gather(dict(mine))
    for rank, other in enumerate(found):
        for name, value in found[0].items():
            if other.get(name) != value:
                raise ranks.lose(
                    f"rank {rank} has {name} {other.get(name)} and rank 0 has {value}; all ranks"
                    " need the same"
                )


def _follow(place: Place, request: Request, open_session: Opener, meeting: str) -> None:
    """Decode what the leader decodes until it ends."""
    # The terminal and torchrun send Ctrl-C to all ranks, and the leader decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    from ..decoder.parallel.transport import DistributedTransport

    ranks = DistributedTransport(place.rank, place.size, meeting)
    request = placed(request, place)
    load = open_session(request)
    connect(ranks, request)
    session = load(ranks)
    while True:
        try:
            task: Task = ranks.broadcast()
        except RankError:  # the leader has ended, and its exit code tells how
            return
        if task.drafts is not None:
            session.drafts = task.drafts
        try:
            for _event in session.stream(task.prompt, task.settings):
                pass
        except (RankError, NoMemoryError):
            raise
        except (DecoderError, LadeError):
            pass  # the leader fails alike, or has been told
