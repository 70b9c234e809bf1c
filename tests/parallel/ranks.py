"""A program of several ranks that say numbers to one another in the place of a model.

`python -m tests.parallel.ranks K STEPS` is the leader; followers run it without arguments.  The
variable PLAY says what goes wrong in one of them.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from ladecli.decoder.errors import DecoderError
from ladecli.errors import LadeError
from ladecli.parallel.crew import Crew
from ladecli.parallel.follow import as_child, run
from ladecli.parallel.launcher import VARIABLE
from ladecli.parallel.place import is_follower
from ladecli.parallel.start import started
from ladecli.settings import Request
from ladecli.terminal import ctrl_c

if TYPE_CHECKING:
    from ladecli.decoder.parallel.processes import Processes

RANK = 1
STEP = 2
"""The rank, and the step, in which something goes wrong."""


@dataclass(frozen=True)
class Count:
    """Settings of an answer that counts."""

    steps: int
    strategy: str = "lookahead"


def play(rank: int, step: int) -> None:
    """What goes wrong in a step of one rank."""
    if rank != RANK or step != STEP:
        return
    match os.environ.get("PLAY"):
        case "die":
            os.kill(os.getpid(), signal.SIGKILL)
        case "slow":
            time.sleep(1.5)


class Counting:
    """A session whose answers are what the ranks said."""

    def __init__(self, processes: Processes) -> None:
        self.processes = processes
        # More than a store of torch's would carry.
        self.drafts: Any = SimpleNamespace(seen=0, known=bytes(9 << 20))

    def stream(self, prompt: Sequence[int], settings: Count) -> Iterator[list[list[int]]]:
        for step in range(settings.steps):
            play(self.processes.rank, step)
            self.drafts.seen += 1
            numbers = [self.processes.rank, prompt[0], step, self.drafts.seen]
            yield self.processes.gather(numbers)


def open_session(_: Request) -> Callable[[Processes], Any]:
    def load(processes: Processes) -> Counting:
        processes.collect("loaded")
        return Counting(processes)

    return load


def show(**said: Any) -> None:
    print(json.dumps(said), flush=True)


def lead(request: Request, answers: Sequence[Count]) -> None:
    with (
        started(request, module="tests.parallel.ranks") as leader,
        ctrl_c() as cancelled,
    ):
        load = open_session(leader.request)
        joined = leader.join()
        assert joined is not None
        processes = joined.processes
        session = load(processes)
        show(pids=processes.meeting.pids)
        group: Any = SimpleNamespace(begun=0)
        crew = Crew(processes, group)
        for number, settings in enumerate(answers):
            with crew.answering([number], settings, session.drafts):
                group.begun += 1
                for rows in session.stream([number], settings):
                    show(rows=rows)
                    if cancelled():
                        show(cancelled=True)
                        return
                    time.sleep(float(os.environ.get("PAUSE", "0")))


def main(arguments: Sequence[str]) -> int:
    if VARIABLE in os.environ:
        if os.environ.get("PLAY") == "import":
            raise ImportError("no such library")
        return as_child(open_session)
    size, *steps = map(int, arguments)
    seed = 7 if is_follower() and os.environ.get("PLAY") == "seed" else 3
    request = Request(parallel=size or None, device="cpu", seed=seed)
    try:
        if is_follower():
            return run(request, open_session)
        lead(request, [replace(Count(0), steps=n) for n in steps])
    except (LadeError, DecoderError) as error:
        if not is_follower():
            print(f"lade: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
