"""From a request to ranks that have met; and their end, whatever that is."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from types import FrameType
from typing import TYPE_CHECKING

from ..errors import UsageError
from ..settings import Request
from . import last_word
from .greeting import Greeting, asked, disagreement, remark, versions
from .launcher import FOLLOWER, Launcher, cores
from .place import Place, place_of

if TYPE_CHECKING:
    from ..decoder.parallel.meeting import Meeting
    from ..decoder.parallel.processes import Processes
    from ..device import Device

_LOOPBACK = {"linux": "lo", "darwin": "lo0"}
_TRIED_OUT = 8
"""Ranks that may share a processor with fewer cores: a machine with so many GPUs is common, and
people try out here what they will do there."""


@dataclass(frozen=True, slots=True)
class Joined:
    """A rank that has met the others.

    Attributes:
        processes: the ranks.
        notice: a line that the user should see, or None.
    """

    processes: Processes
    notice: str | None


class Leader:
    """A rank that will lead others, which are on their way; or that is alone.

    Args:
        place: which rank this is.
        request: what was asked for, on the device of this rank.
        device: of this rank; None where it is alone.
        meeting: where ranks find each other; None where there are no others.

    Attributes:
        request: the same, with the number of ranks.
    """

    def __init__(
        self,
        place: Place,
        request: Request,
        device: Device | None = None,
        meeting: Meeting | None = None,
    ) -> None:
        self.request = request
        if meeting is not None:
            self.request = replace(request, parallel=place.size)  # which torchrun may have said
        self._place, self._asked, self._device, self._meeting = place, request, device, meeting
        self._joined: Joined | None = None
        self._restore = _nothing

    @property
    def notice(self) -> str | None:
        """What the user should know before the ranks start, or None."""
        if self._device is None or self._device.kind == "cuda" or self._place.local_size == 1:
            return None
        ranks, what = self._place.local_size, "one GPU"
        if self._device.kind == "cpu":
            count = cores()
            what = f"the {count} cores of this machine" if count > 1 else "one core"
        return f"{ranks} ranks share {what}: good for trying it out, not for speed"

    @property
    def alone(self) -> bool:
        """Whether there are no others."""
        return self._meeting is None

    def join(self) -> Joined | None:
        """Meet the others; None where there are none.

        Raises:
            RankError: a rank failed, or disagrees.
        """
        if self._meeting is None or self._device is None:
            return None
        self._joined = join(self._place, self._asked, self._device, self._meeting)
        if "OMP_NUM_THREADS" not in os.environ and not self._place.launched:
            from ..decoder.parallel.processes import share_cores

            self._restore = share_cores(self._place.size)
        return self._joined

    def leave(self, *, waiting: bool) -> None:
        """Leave the ranks, which have been told to end.

        Args:
            waiting: whether the others do so, too, in good order.
        """
        self._restore()
        if self._joined is not None and waiting:
            self._joined.processes.leave()


@contextlib.contextmanager
def started(request: Request, *, module: str = FOLLOWER) -> Iterator[Leader]:
    """Be the leader of as many ranks as were asked for, or as torchrun has started.

    They start while the caller finds out whether they will have something to do, and `Leader.join`
    waits for them.  However this ends, the followers end with it.

    Args:
        request: what the user asked for, checked.
        module: what followers run that are started here.

    Raises:
        UsageError: there cannot be so many ranks here.
        RankError: a rank failed.
    """
    place = place_of(request)
    if place.size == 1:
        yield Leader(place, request)
        return
    hush_torch()
    if place.launched:
        from ..decoder.parallel import store

        with _led(place, request, store.by_environment()) as leader:
            yield leader
        return
    _check_number(request, place)
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listener:
        host, port = listener.getsockname()
        told = {"host": host, "port": port, "size": place.size, "request": asked(request)}
        environment = dict(os.environ)
        with _variables(variables(place, host, port)):
            # It imports torch while this process does.
            launcher = Launcher(place.size, told, environment, module)
            patient = False
            try:
                from ..decoder.parallel import store

                hosted = store.hosted(listener, place.size, launcher.ended)
                with _led(place, request, hosted) as leader:
                    yield leader
                patient = True
            finally:
                launcher.close(patient=patient)


def join(place: Place, request: Request, device: Device, meeting: Meeting) -> Joined:
    """Greet the other ranks, and connect with them.

    Args:
        place: which rank this is.
        request: what was asked for.
        device: of this rank.
        meeting: where ranks find each other.

    Raises:
        RankError: a rank failed, or disagrees.
    """
    from ..decoder.parallel.processes import Processes

    meeting.meet()
    mine = Greeting(versions(), asked(request), device.kind, device.label)
    greetings = [Greeting.from_text(text) for text in meeting.collect(mine.to_text())]
    if words := disagreement(greetings):
        raise meeting.losing(words)
    processes = Processes(meeting, device.torch_name if device.kind == "cuda" else "cpu")
    return Joined(processes, remark(greetings))


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
        who = f"--parallel {place.size} needs {place.size} GPUs"
        if place.launched:
            who = f"{place.local_size} ranks on one machine need {place.local_size} GPUs"
        raise UsageError(f"{who} and {gpus} {'is' if gpus == 1 else 'are'} visible; use fewer")
    here = replace(request, device=f"cuda:{place.local_rank}")
    return here, device.detect(here.device)


def _check_number(request: Request, place: Place) -> None:
    """Refuse so many ranks that the machine would have no time for anything else.

    Raises:
        UsageError: there are no GPUs for them, and far fewer cores.
    """
    count = cores()
    most = max(_TRIED_OUT, count)
    if place.size <= most:
        return
    _, device = placed(request, place)
    if device.kind == "cuda":
        return
    without = "one GPU" if device.kind == "mps" else "no GPU"
    here = f"{count} core{'s' if count > 1 else ''}"
    if request.device != "cpu":
        here += f" and {without}"
    raise UsageError(
        f"--parallel {place.size} asks for {place.size} processes, and this machine has {here};"
        f" use at most {most}"
    )


def variables(place: Place, host: str, port: int) -> dict[str, str]:
    """What libraries look for in the environment of a rank on this machine."""
    names = {
        "RANK": place.rank,
        "WORLD_SIZE": place.size,
        "LOCAL_RANK": place.local_rank,
        "LOCAL_WORLD_SIZE": place.local_size,
        "MASTER_ADDR": host,
        "MASTER_PORT": port,
    }
    # What ranks of one machine say to one another is nobody else's business.
    loopback = os.environ.get("GLOO_SOCKET_IFNAME") or _LOOPBACK.get(sys.platform)
    told = {name: str(value) for name, value in names.items()}
    return told | ({"GLOO_SOCKET_IFNAME": loopback} if loopback else {})


def hush_torch() -> None:
    """A rank that goes is told in one line of ours, without torch's own dozens."""
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")


@contextlib.contextmanager
def _led(place: Place, request: Request, meeting: Meeting) -> Iterator[Leader]:
    """Lead the ranks of a meeting, and let them end when this does."""
    leader, failed = None, True
    with _signals(meeting, kept=place.launched):
        try:
            leader = Leader(place, *placed(request, place), meeting)
            yield leader
            failed = False
        except Exception as error:
            last_word.leave(str(error))
            raise
        finally:
            meeting.over(failed=failed)
            if leader is not None:
                leader.leave(waiting=not failed)


@contextlib.contextmanager
def _signals(meeting: Meeting, *, kept: bool) -> Iterator[None]:
    """Let SIGTERM end the leader by an exception: with the reason, if a rank has failed.

    torchrun sends it to all ranks when one of them has ended, and does not say so.

    Args:
        meeting: where reasons are.
        kept: whether SIGTERM stays ignored after a failure, which is still to be told.
    """

    def on_signal(number: int, _frame: FrameType | None) -> None:
        if meeting.lost is None:
            meeting.look(thoroughly=True)
            raise SystemExit(128 + number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = [getattr(signal, n) for n in ("SIGTERM", "SIGHUP") if hasattr(signal, n)]
    before = {number: signal.signal(number, on_signal) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            lost = kept and meeting.lost is not None
            signal.signal(number, signal.SIG_IGN if lost else handler)


@contextlib.contextmanager
def _variables(values: Mapping[str, str]) -> Iterator[None]:
    """Set variables of the environment for a while."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _nothing() -> None:
    """Nothing was changed, so nothing is changed back."""
