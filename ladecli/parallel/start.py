"""From a request to ranks that are connected, and their end, however that comes about.

Followers of `--parallel K` are started like torchrun's: their environment has the rendezvous.
torch's own launchers do not fit a program whose rank 0 is there already and has the terminal: they
replace its signal handlers, log to its stderr, and start only when torch is imported.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import FrameType
from typing import IO, TYPE_CHECKING

import psutil

from ..decoder.errors import RankError
from ..errors import UsageError
from ..options import Request
from .agreement import greet, shared_options
from .place import Place, place_of

if TYPE_CHECKING:
    from ..decoder.parallel.transport import DistributedTransport
    from ..device import Device

FOLLOWER = str(__package__)
"""The module that a follower runs."""
_TRIAL_RANKS = 8
"""Ranks that may share fewer cores, to try out what a machine with GPUs does."""
_LOOPBACK = {"linux": "lo", "darwin": "lo0"}


@dataclass(frozen=True, slots=True)
class Joined:
    """The connected ranks, and a line for the user or None."""

    processes: DistributedTransport
    notice: str | None


@dataclass(frozen=True, slots=True)
class Leader:
    """Rank 0, with other ranks on their way; or a process that is alone.

    Attributes:
        request: on this rank's device, with the number of ranks.
        asked: the request as the user made it.
        place: of this process.
        device: of this rank; None where it is alone.
        ranks: None where there are no others.
    """

    request: Request
    asked: Request
    place: Place
    device: Device | None = None
    ranks: DistributedTransport | None = None

    @property
    def alone(self) -> bool:
        """Whether there are no other ranks."""
        return self.ranks is None

    @property
    def notice(self) -> str | None:
        """What the user should know before the ranks start, or None."""
        if self.device is None or self.device.kind == "cuda" or self.place.local_size == 1:
            return None
        what = "one GPU"
        if self.device.kind == "cpu":
            what = f"the {cores()} cores of this machine" if cores() > 1 else "one core"
        return f"{self.place.local_size} ranks share {what}: good for trying it out, not for speed"

    def join(self) -> Joined | None:
        """Connect with the other ranks; None where there are none.

        Raises:
            RankError: a rank failed, or disagrees.
        """
        if self.ranks is None or self.device is None:
            return None
        notice = connect(self.ranks, self.place, self.asked, self.device)
        return Joined(self.ranks, notice)


@contextlib.contextmanager
def started(request: Request, *, module: str = FOLLOWER) -> Iterator[Leader]:
    """Lead as many ranks as the request asks for, or as torchrun started.

    They start while the caller prepares, and `Leader.join` waits for them.  However the block
    ends, the followers end with it.

    Args:
        request: of the user, checked.
        module: what followers run that are started here.

    Raises:
        UsageError: there cannot be so many ranks here.
        RankError: a rank failed.
    """
    place = place_of(request)
    if place.size == 1:
        yield Leader(request, request, place)
        return
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    with contextlib.ExitStack() as stack:
        listener, failure = None, _unknown
        if not place.launched:
            _check_number(request, place)
            listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=128))
            address = listener.getsockname()[:2]
            os.environ.update(_variables(place, *address))
            followers = stack.enter_context(_Followers(request, place, address, module))
            failure = followers.failure
        from ..decoder.parallel.transport import DistributedTransport

        ranks = DistributedTransport(place.rank, place.size, listener, failure)
        if place.launched:
            _end_by_error(ranks)
        here, device = placed(request, place)
        yield Leader(replace(here, parallel=place.size), request, place, device, ranks)
        with contextlib.suppress(RankError):
            if place.launched:  # its followers must end by themselves
                ranks.broadcast(None, patience=3.0)
            ranks.close()


def connect(
    ranks: DistributedTransport, place: Place, request: Request, device: Device
) -> str | None:
    """Connect a rank with the others, and compare what must be equal.

    Returns:
        A line for the user, or None.

    Raises:
        RankError: a rank failed, or disagrees.
    """
    # torchrun sets the variable.
    threads = None if "OMP_NUM_THREADS" in os.environ else max(cores() // place.local_size, 1)
    ranks.connect(device.torch_name if device.kind == "cuda" else "cpu", threads)
    return greet(ranks, request, device)


def placed(request: Request, place: Place) -> tuple[Request, Device]:
    """The request on this rank's own device, and that device.

    Raises:
        UsageError: there are not enough GPUs.
    """
    from .. import device

    found = device.detect(request.device)
    if found.kind != "cuda":
        return request, found
    gpus = sum(each.kind == "cuda" for each in device.present())
    if place.local_size > gpus:
        asked = f"--parallel {place.size} needs {place.size} GPUs"
        if place.launched:
            asked = f"{place.local_size} ranks on one machine need {place.local_size} GPUs"
        raise UsageError(f"{asked} and {gpus} {'is' if gpus == 1 else 'are'} visible; use fewer")
    here = replace(request, device=f"cuda:{place.local_rank}")
    return here, device.detect(here.device)


def cores() -> int:
    """Cores of the processor that this process may use."""
    physical = psutil.cpu_count(logical=False) or os.cpu_count() or 1
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else physical
    return min(physical, allowed)


class _Followers:
    """The processes of ranks 1 to K - 1, which end with the block.

    Each is in a session of its own, so that Ctrl-C reaches the leader alone, and ends when its
    standard input does: with the leader, even if that is killed.
    """

    def __init__(
        self, request: Request, place: Place, address: tuple[str, int], module: str
    ) -> None:
        self._processes: list[tuple[subprocess.Popen[bytes], IO[bytes]]] = []
        text = json.dumps(shared_options(request)).encode() + b"\n"
        threads = {"OMP_NUM_THREADS": str(max(cores() // place.size, 1))}
        for rank in range(1, place.size):
            log = tempfile.TemporaryFile()  # noqa: SIM115  (read when the process has ended)
            process = subprocess.Popen(
                [sys.executable, "-m", module],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=threads | os.environ | _variables(replace(place, rank=rank), *address),
                start_new_session=True,
            )
            self._processes.append((process, log))
            assert process.stdin is not None
            process.stdin.write(text)
            process.stdin.flush()

    def __enter__(self) -> _Followers:
        return self

    def __exit__(self, *_: object) -> None:
        for process, log in self._processes:  # they have nothing to save
            process.kill()
            process.communicate()
            log.close()

    def failure(self) -> str | None:
        """How the first one that ended did, or None while all run."""
        for rank, (process, log) in enumerate(self._processes, start=1):
            if (code := process.poll()) is None:
                continue
            if code < 0:
                name = signal.Signals(-code).name
                why = "; the system does so when memory runs out" if name == "SIGKILL" else ""
                return f"rank {rank} was killed ({name}{why})"
            log.seek(0)
            lines = log.read().decode(errors="replace").split("\n")
            last = next((line for line in reversed(lines) if line.strip()), f"exit code {code}")
            return f"rank {rank} ended: {last}"
        return None


def _check_number(request: Request, place: Place) -> None:
    """Refuse more ranks than this machine can run at a useful speed."""
    most = max(_TRIAL_RANKS, cores())
    if place.size > most and placed(request, place)[1].kind != "cuda":
        raise UsageError(
            f"--parallel {place.size} asks for {place.size} processes, and this machine has"
            f" {cores()} core{'s' if cores() > 1 else ''} and not as many GPUs; use at most {most}"
        )


def _variables(place: Place, host: str, port: int) -> dict[str, str]:
    """The environment of a rank on this machine, as torchrun would set it."""
    rank, size = str(place.rank), str(place.size)
    found = {"RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": size}
    found |= {"MASTER_ADDR": host, "MASTER_PORT": str(port)}
    # Otherwise gloo asks for the machine's name, which may lead elsewhere.
    if loopback := os.environ.get("GLOO_SOCKET_IFNAME") or _LOOPBACK.get(sys.platform):
        found["GLOO_SOCKET_IFNAME"] = loopback
    return found


def _end_by_error(ranks: DistributedTransport) -> None:
    """Let SIGTERM, by which torchrun ends the ranks when one has failed, raise `RankError`.

    So the leader keeps the text and says why it ends.  Nothing is changed back, for it does end.
    """

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        if ranks.lost is None:
            raise ranks.lose(ranks.failure() or "another rank ended; torchrun's summary names it")

    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, on_signal)


def _unknown() -> str | None:
    """How torchrun's ranks ended is for torchrun to say."""
    return None
