"""Ranks as processes: starting them, comparing their settings, following the leader, and ending.

Rank 0 is the *leader*, which alone reads, prints and writes files; the others are *followers*.
`--parallel K` starts them without torch's launcher, whose first Ctrl-C ends a chat, whose ranks
have no terminal, and which turns exit code 2 into 1 below a report of thirty lines.  Importing this
module imports no torch.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import multiprocessing
import os
import platform
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from ..decoder.errors import DecoderError, NoMemoryError, RankError
from ..errors import LadeError, UsageError, describe_error
from ..models import device
from ..options.answer import RankedOptions
from ..view.terminal import handling
from .rank_info import RankInfo, assign_device, find_rank, read_torchrun

if TYPE_CHECKING:
    from ..decoder.drafting.store import DraftStore
    from ..decoder.ranks.executors import Ranks
    from ..decoder.ranks.transport import DistributedTransport
    from ..models.load import LoadedModel
    from .session import Session, Settings

Planner = Callable[[RankedOptions, int], Callable[["DistributedTransport"], "Session"]]
"""Takes a request and the number of ranks on this machine; returns a function that loads the
model."""
_TRIAL_RANKS = 8
"""The most ranks that may share a device, which is only for trying them out."""
_LOOPBACK = {"linux": "lo", "darwin": "lo0"}
_EXIT_DELAY = 2.0
"""Seconds that a failed rank waits before it exits, after which torchrun ends all ranks: the leader
reports first."""
_PER_RANK_OPTIONS = {
    *("system", "memory", "draft_text", "color", "stats", "trace", "quiet"),
    *("offline", "origins", "parallel", "device"),
}
"""Options that only the leader uses, and options that differ between ranks."""


@dataclass(frozen=True, slots=True)
class Order:
    """An answer that all ranks decode."""

    prompt: tuple[int, ...]  # token ids
    settings: Settings
    drafts: DraftStore | None  # the leader's; None if the follower has learned the same


# The leader.


@contextlib.contextmanager
def start_ranks(
    request: RankedOptions, info: RankInfo, plan: Planner
) -> Iterator[DistributedTransport]:
    """Lead as many ranks as the request asks for, or as torchrun started.

    They start while the caller prepares, and `connect` waits for them.  The followers always end
    with the block.

    Args:
        request: of the user, checked.
        info: of this process, the first of several.
        plan: plans the followers' loads; a module-level function, which they import.

    Raises:
        RankError: a rank failed.
    """
    with contextlib.ExitStack() as stack:
        rendezvous, failure = "env://", None
        if not info.launched:
            _set_variables(info)
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="lade-"))
            rendezvous = (Path(folder) / "ranks").as_uri()
            followers = _start_processes(info, (request, plan, rendezvous, folder))
            failure = stack.enter_context(followers)
        from ..decoder.ranks.transport import DistributedTransport

        ranks = DistributedTransport(info.rank, info.size, rendezvous, failure)
        stack.callback(ranks.close)
        yield ranks


class Followers:
    """The followers of a leader that has joined them.

    Args:
        ranks: the connection to them.
        executor: runs the steps of all of them.
        split: True if each rank holds a part of the model, so that every answer needs all ranks.
    """

    def __init__(self, ranks: DistributedTransport, executor: Ranks, *, split: bool) -> None:
        self._ranks = ranks
        self._executor = executor
        self._split = split
        self._known: DraftStore | None = None
        if read_torchrun():
            # torchrun ends all ranks by SIGTERM when one has failed; the leader keeps the text.
            signal.signal(signal.SIGTERM, self._on_sigterm)

    def _on_sigterm(self, _number: int, _frame: FrameType | None) -> None:
        if self._ranks.lost is None:
            raise self._ranks.lose(f"{self._ranks.other} ended; torchrun's summary tells how")

    def drafts_changed(self) -> None:
        """Send all drafts again with the next answer: they learned from more than answers."""
        self._known = None

    def takes_part(self, settings: Settings) -> bool:
        """Return True if all ranks decode an answer, False if the leader does alone."""
        return self._split or settings.strategy == "lookahead"

    @contextlib.contextmanager
    def answering(
        self, prompt: Sequence[int], settings: Settings, drafts: DraftStore
    ) -> Iterator[None]:
        """Let the followers decode an answer together with the leader.

        Raises:
            RankError: a rank is gone.
        """
        unknown = None if drafts is self._known else drafts
        self._known = None
        begun = self._executor.begun
        try:
            self._ranks.gather(Order(tuple(prompt), settings, unknown))
            yield
        except GeneratorExit:
            self._known = drafts
            raise
        except RankError as error:
            raise self._ranks.lose(str(error)) from error
        except BaseException as error:
            if self._executor.begun == begun:  # followers wait for an answer that does not begin
                lost = "an answer was interrupted before it began; start the ranks again"
                raise self._ranks.lose(lost) from error
            # An all-reduce of a split model fails if one of the ranks has ended.
            if isinstance(error, RuntimeError) and (rank_error := self._ranks.explain()):
                raise rank_error from error
            raise
        self._known = drafts


@contextlib.contextmanager
def _start_processes(
    info: RankInfo, task: tuple[RankedOptions, Planner, str, str]
) -> Iterator[Callable[[], str | None]]:
    """Start ranks 1 to K - 1, which end with the block, or when the leader is killed.

    Args:
        task: arguments for `_run_child`.

    Yields:
        A function that describes how the first one ended; it returns None while all run.
    """
    spawn = multiprocessing.get_context("spawn")
    last_words, theirs = spawn.Pipe(duplex=False)
    followers: list[SpawnProcess] = []

    def failure() -> str | None:
        codes = [process.exitcode for process in followers]
        for rank, code in enumerate(codes, start=1):
            if code is not None and code < 0:
                return f"rank {rank} was killed ({signal.Signals(-code).name})"
        if last_words.poll():
            return "rank {} failed: {}".format(*last_words.recv())
        ended = (rank for rank, code in enumerate(codes, start=1) if code is not None)
        return next((f"rank {rank} ended" for rank in ended), None)

    try:
        # Followers inherit both.  Python has the current folder on its path when it starts them,
        # and would run a file `re.py` there; this folder is empty.
        with handling(signal.SIG_IGN, signal.SIGINT), _inside(task[-1]) as here:
            for rank in range(1, info.size):
                arguments = replace(info, rank=rank, local_rank=rank), *task, here, theirs
                process = spawn.Process(target=_run_child, args=arguments, daemon=True)
                process.start()
                followers.append(process)
        yield failure
    finally:
        for process in followers:  # they have nothing to save
            process.kill()
            process.join()


@contextlib.contextmanager
def _inside(folder: str) -> Iterator[str]:
    """Change to a folder within a block, and yield the name of the previous one."""
    before = os.getcwd()
    os.chdir(folder)
    try:
        yield before
    finally:
        os.chdir(before)


def check_number(request: RankedOptions, info: RankInfo) -> list[str]:
    """Return a notice if ranks share a device; raise a UsageError if there are too many."""
    # Without torch if possible, since torch reads its thread variables, not set yet, on import.
    kind = (device.predict_device(request.device) or device.detect(request.device)).kind
    if kind == "cuda":
        return []
    if not info.launched and info.size > _TRIAL_RANKS:
        raise UsageError(
            f"--parallel {info.size} asks for as many processes without GPUs of their own; use at"
            f" most {_TRIAL_RANKS}"
        )
    line = (
        f"{info.local_size} ranks share one device: good for trying it out, not for speed; the"
        " speed-up that is shown is over plain steps of the same ranks"
    )
    return [line] if info.local_size > 1 else []


def _set_variables(info: RankInfo) -> None:
    """Set the variables that torchrun would set for rank 0; followers inherit them."""
    size = str(info.size)
    os.environ |= {"RANK": "0", "WORLD_SIZE": size, "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": size}
    os.environ.setdefault("OMP_NUM_THREADS", str(max(device.cores() // info.size, 1)))
    device.set_variables()
    # Otherwise gloo resolves the host name, which may give another machine's address.
    if loopback := _LOOPBACK.get(sys.platform):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback)


# A follower.


def follow(request: RankedOptions, plan: Planner) -> int:
    """Run a follower that the user's own torchrun started, and return the exit code."""
    info = find_rank(request)
    try:
        _follow(info, request, plan, "env://")
    except BaseException as error:
        if not isinstance(error, RankError):  # the leader reports those
            print(f"lade: rank {info.rank} failed: {describe_error(error)}", file=sys.stderr)
        time.sleep(_EXIT_DELAY)
        return LadeError.exit_code
    return 0


def _run_child(
    info: RankInfo,
    request: RankedOptions,
    plan: Planner,
    rendezvous: str,
    folder: str,
    here: str,
    last_words: Connection,
) -> None:
    """Run a follower that the leader started, and end the process.

    Args:
        rendezvous: URL at which the ranks connect.
        folder: the leader's; deleted if the leader is killed.
        here: the current folder.
        last_words: receives this rank's number and the reason of its failure.
    """
    os.chdir(here)
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)

    def end_with_leader() -> None:
        leader = multiprocessing.parent_process()
        assert leader is not None
        leader.join()
        shutil.rmtree(folder, ignore_errors=True)
        os._exit(1)

    ending = threading.Thread(target=end_with_leader, daemon=True)
    ending.start()
    os.environ |= {"RANK": str(info.rank), "LOCAL_RANK": str(info.local_rank)}
    try:
        _follow(info, request, plan, rendezvous)
    except BaseException as error:
        if not isinstance(error, RankError):
            last_words.send((info.rank, describe_error(error)))
            os._exit(1)
    ending.join()  # the leader ends this process; if it is gone, `end_with_leader` does


def _follow(info: RankInfo, request: RankedOptions, plan: Planner, rendezvous: str) -> None:
    """Decode the leader's answers until it ends."""
    # The terminal and torchrun send Ctrl-C to all ranks, and the leader decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    from ..decoder.ranks.transport import DistributedTransport

    ranks = DistributedTransport(info.rank, info.size, rendezvous)
    request = assign_device(request, info)
    load = plan(request, info.local_size)
    connect(ranks, request)
    session = load(ranks)
    while True:
        try:
            # A leader that is interrupted in the last step of an answer, which has ended here,
            # sends that before its next order.
            while not isinstance(order := ranks.gather(None)[0], Order):
                pass
        except RankError:  # the leader has ended
            return
        if order.drafts is not None:
            session.drafts = order.drafts
        try:
            for _event in session.stream(order.prompt, order.settings):
                pass
        except (RankError, NoMemoryError):
            raise
        except (DecoderError, LadeError):
            pass  # the leader fails in the same way, or knows the error


# All ranks.


def connect(ranks: DistributedTransport, request: RankedOptions) -> None:
    """Connect to the other ranks, and compare versions, options and devices.

    Raises:
        RankError: a rank failed, or differs.
    """
    from ..profiles.user import versions_here

    here = device.detect(request.device)
    ranks.connect(here.torch_name, split=request.parallel_mode == "tensor")
    mine = {**versions_here(), "Python": platform.python_version(), "device": here.kind}
    for name in sorted({option.name for option in fields(RankedOptions)} - _PER_RANK_OPTIONS):
        mine[name.replace("_", "-")] = getattr(request, name)
    _compare(ranks, mine)


def compare_loaded(loaded: LoadedModel, ranks: DistributedTransport) -> None:
    """Compare a model with those of the other ranks; every rank calls this.

    It runs before the decoder changes the layout of the weights.

    Raises:
        RankError: the models differ.
    """
    from ..decoder.ranks.transport import weights_digest

    split = loaded.placement.split > 1  # each rank holds another part of the weights
    mine = {
        "dtype": str(loaded.dtype),
        "a tokenizer": _digest_of(loaded.tokenizer)[:8],
        "weights": "" if split else weights_digest(loaded.model)[:8],
    }
    _compare(ranks, mine)


def _digest_of(tokenizer: Any) -> str:
    """Return a digest of a tokenizer's vocabulary, ids included."""
    vocabulary = sorted(tokenizer.get_vocab().items())
    return hashlib.sha256(json.dumps(vocabulary).encode()).hexdigest()


def join(session: Session, ranks: DistributedTransport, *, split: bool) -> None:
    """Let a session decode with other ranks, which have loaded the same; every rank calls this.

    With `split`, each rank holds another part of the weights.
    """
    from ..decoder.ranks.executors import LookaheadParallel, TensorParallel

    kind = TensorParallel if split else LookaheadParallel
    session.executor = executor = kind(session.decoder.executor, ranks)
    session.ranks = ranks.size
    session.followers = Followers(ranks, executor, split=split) if ranks.rank == 0 else None


def _compare(ranks: DistributedTransport, mine: Mapping[str, object]) -> None:
    """Compare the values of all ranks; a `RankError` names the first difference."""
    gathered = ranks.gather(dict(mine))
    for rank, other in enumerate(gathered):
        for name, value in gathered[0].items():
            if other.get(name) != value:
                raise ranks.lose(
                    f"rank {rank} has {name} {other.get(name)} and rank 0 has {value}; all ranks"
                    " need the same"
                )
