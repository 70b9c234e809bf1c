"""Ranks as processes: how they start, agree, follow and end.  Importing this imports no torch.

Rank 0 is the *leader*, which alone reads, prints and writes files; the others are *followers*.
Those of `--parallel K` are processes of their own.  torch's launcher was tried in their place: its
first Ctrl-C ends the launcher and with it a chat, whose ranks it had put into sessions without a
terminal; and an exit code of 2 came out as 1, below a report of thirty lines.
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
from .place import Place, assign_device, find_place, read_torchrun

if TYPE_CHECKING:
    from ..decoder.drafting.store import DraftStore
    from ..decoder.ranks.executors import Ranks
    from ..decoder.ranks.transport import DistributedTransport
    from ..models.load import LoadedModel
    from .session import Session, Settings

Planner = Callable[[RankedOptions, int], Callable[["DistributedTransport"], "Session"]]
"""Plans how to load a request's model, one of N on this machine; what it returns loads it."""
_TRIAL_RANKS = 8
"""Ranks that may share a device, to try out what a machine with GPUs does."""
_LOOPBACK = {"linux": "lo", "darwin": "lo0"}
_EXIT_DELAY = 2.0
"""Seconds until a rank that failed ends, and torchrun all others: the leader reports first."""
_PER_RANK_OPTIONS = {
    *("system", "memory", "draft_text", "color", "stats", "trace", "quiet"),
    *("offline", "origins", "parallel", "device"),
}
"""Options that only the leader acts on, and those that are made each rank's own."""


@dataclass(frozen=True, slots=True)
class Order:
    """An answer that all ranks decode."""

    prompt: tuple[int, ...]  # token ids
    settings: Settings
    drafts: DraftStore | None  # the leader's; None where the follower has learned the same


# The leader.


@contextlib.contextmanager
def start_ranks(
    request: RankedOptions, place: Place, plan: Planner
) -> Iterator[DistributedTransport]:
    """Lead as many ranks as the request asks for, or as torchrun started.

    They start while the caller prepares, and `connect` waits for them.  However the block ends,
    the followers end with it.

    Args:
        request: of the user, checked.
        place: of this process, the first of several.
        plan: how followers plan theirs; a function of a module, which they import.

    Raises:
        RankError: a rank failed.
    """
    with contextlib.ExitStack() as stack:
        rendezvous, failure = "env://", None
        if not place.launched:
            _set_variables(place)
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="lade-"))
            rendezvous = (Path(folder) / "ranks").as_uri()
            followers = _start_processes(place, (request, plan, rendezvous, folder))
            failure = stack.enter_context(followers)
        from ..decoder.ranks.transport import DistributedTransport

        ranks = DistributedTransport(place.rank, place.size, rendezvous, failure)
        stack.callback(ranks.close)
        yield ranks


class Followers:
    """The followers of a leader that has joined them.

    Args:
        ranks: how to reach them.
        executor: runs the steps of all of them.
        split: whether each holds a part of the model, so that every answer needs all of them.
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
        """Send all drafts again with the next answer: they learned what no answer taught."""
        self._known = None

    def takes_part(self, settings: Settings) -> bool:
        """Whether an answer is decoded by all ranks, or by the leader alone."""
        return self._split or settings.strategy == "lookahead"

    @contextlib.contextmanager
    def answering(
        self, prompt: Sequence[int], settings: Settings, drafts: DraftStore
    ) -> Iterator[None]:
        """Let the followers decode an answer while the leader does.

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
            # A sum that ranks of a split model compute together breaks off where one has ended.
            if isinstance(error, RuntimeError) and (rank_error := self._ranks.explain()):
                raise rank_error from error
            raise
        self._known = drafts


@contextlib.contextmanager
def _start_processes(
    place: Place, task: tuple[RankedOptions, Planner, str, str]
) -> Iterator[Callable[[], str | None]]:
    """The processes of ranks 1 to K - 1, which end with the block, or when the leader is killed.

    Args:
        task: what each of them is given, see `_run_child`.

    Yields:
        A function that describes how the first one ended; None while all run.
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
            for rank in range(1, place.size):
                arguments = replace(place, rank=rank, local_rank=rank), *task, here, theirs
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
    """Let a folder be the current one within a block, which gets the name of the other."""
    before = os.getcwd()
    os.chdir(folder)
    try:
        yield before
    finally:
        os.chdir(before)


def check_number(request: RankedOptions, place: Place) -> list[str]:
    """Refuse with a UsageError more ranks than are useful here; a notice where they share a
    device."""
    # Without torch where that will do: it takes its threads from variables that are not set yet.
    kind = (device.predict_device(request.device) or device.detect(request.device)).kind
    if kind == "cuda":
        return []
    if not place.launched and place.size > _TRIAL_RANKS:
        raise UsageError(
            f"--parallel {place.size} asks for as many processes without GPUs of their own; use at"
            f" most {_TRIAL_RANKS}"
        )
    line = (
        f"{place.local_size} ranks share one device: good for trying it out, not for speed; the"
        " speed-up that is shown is over plain steps of the same ranks"
    )
    return [line] if place.local_size > 1 else []


def _set_variables(place: Place) -> None:
    """Set what torchrun would for rank 0, and followers inherit."""
    size = str(place.size)
    os.environ |= {"RANK": "0", "WORLD_SIZE": size, "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": size}
    os.environ.setdefault("OMP_NUM_THREADS", str(max(device.cores() // place.size, 1)))
    device.set_variables()
    # Otherwise gloo asks for the machine's name, which may lead elsewhere.
    if loopback := _LOOPBACK.get(sys.platform):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback)


# A follower.


def follow(request: RankedOptions, plan: Planner) -> int:
    """Be a follower that the user's own torchrun started, and return the exit code."""
    place = find_place(request)
    try:
        _follow(place, request, plan, "env://")
    except BaseException as error:
        if not isinstance(error, RankError):  # those are the leader's to report
            print(f"lade: rank {place.rank} failed: {describe_error(error)}", file=sys.stderr)
        time.sleep(_EXIT_DELAY)
        return LadeError.exit_code
    return 0


def _run_child(
    place: Place,
    request: RankedOptions,
    plan: Planner,
    rendezvous: str,
    folder: str,
    here: str,
    last_words: Connection,
) -> None:
    """Be a follower that the leader started, and end the process.

    Args:
        rendezvous: URL where the ranks find each other.
        folder: the leader's; deleted should the leader be killed.
        here: the current folder.
        last_words: takes this rank's number and why it failed.
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
    os.environ |= {"RANK": str(place.rank), "LOCAL_RANK": str(place.local_rank)}
    try:
        _follow(place, request, plan, rendezvous)
    except BaseException as error:
        if not isinstance(error, RankError):
            last_words.send((place.rank, describe_error(error)))
            os._exit(1)
    ending.join()  # the leader ends this process; where it is gone, `end_with_leader` does


def _follow(place: Place, request: RankedOptions, plan: Planner, rendezvous: str) -> None:
    """Decode what the leader decodes until it ends."""
    # The terminal and torchrun send Ctrl-C to all ranks, and the leader decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    from ..decoder.ranks.transport import DistributedTransport

    ranks = DistributedTransport(place.rank, place.size, rendezvous)
    request = assign_device(request, place)
    load = plan(request, place.local_size)
    connect(ranks, request)
    session = load(ranks)
    while True:
        try:
            # A leader that was broken off in the last step of an answer, which has ended here, says
            # so before it asks for another one.
            while not isinstance(order := ranks.gather(None)[0], Order):
                pass
        except RankError:  # the leader has ended, and its exit code tells how
            return
        if order.drafts is not None:
            session.drafts = order.drafts
        try:
            for _event in session.stream(order.prompt, order.settings):
                pass
        except (RankError, NoMemoryError):
            raise
        except (DecoderError, LadeError):
            pass  # the leader fails alike, or knows the error


# All ranks.


def connect(ranks: DistributedTransport, request: RankedOptions) -> None:
    """Connect with the other ranks, and compare versions, options and devices with theirs.

    Raises:
        RankError: a rank failed, or differs.
    """
    from ..profiles.user import versions_here

    here = device.detect(request.device)
    ranks.connect(here.torch_name, split=request.parallel_mode == "tensor")
    mine = {**versions_here(), "Python": platform.python_version(), "device": here.kind}
    for name in sorted({each.name for each in fields(RankedOptions)} - _PER_RANK_OPTIONS):
        mine[name.replace("_", "-")] = getattr(request, name)
    _compare(ranks, mine)


def compare_loaded(loaded: LoadedModel, ranks: DistributedTransport) -> None:
    """Compare a model with those of the other ranks; each of them calls this.

    It comes before a decoder has the model, which keeps weights in the forms that are fastest on
    its processor.

    Raises:
        RankError: they have not loaded the same.
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
    """Let a session decode with other ranks, which have loaded the same; each of them calls this.

    With `split`, each rank holds another part of the weights.
    """
    from ..decoder.ranks.executors import LookaheadParallel, TensorParallel

    kind = TensorParallel if split else LookaheadParallel
    session.executor = executor = kind(session.decoder.executor, ranks)
    session.ranks = ranks.size
    session.followers = Followers(ranks, executor, split=split) if ranks.rank == 0 else None


def _compare(ranks: DistributedTransport, mine: Mapping[str, object]) -> None:
    """Gather what every rank has; a `RankError` names the first difference."""
    found = ranks.gather(dict(mine))
    for rank, other in enumerate(found):
        for name, value in found[0].items():
            if other.get(name) != value:
                raise ranks.lose(
                    f"rank {rank} has {name} {other.get(name)} and rank 0 has {value}; all ranks"
                    " need the same"
                )
