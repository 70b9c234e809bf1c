"""A program of several ranks that gather numbers in place of a model's steps.

`python -m tests.parallel.ranks K STEPS...` is the leader of K ranks, or of torchrun's where K
is 0; a follower of K ranks runs it without arguments.  PLAY says what goes wrong on rank 1.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from ladecli.decoder.errors import DecoderError
from ladecli.decoder.errors import DecoderError as NewDecoderError
from ladecli.errors import LadeError
from ladecli.options import Request
from ladecli.parallel.follow import Followers, as_child, run
from ladecli.parallel.place import is_follower
from ladecli.parallel.start import started
from ladecli.terminal import ctrl_c

PLAY = os.environ.get("PLAY")


@dataclass(frozen=True)
class Count:
    """Settings of an answer of so many steps."""

    steps: int
    strategy: str = "lookahead"


class Counting:
    """A session whose answers are what the ranks gathered; a negative step ends one on all."""

    def __init__(self, ranks: Any) -> None:
        self.ranks = ranks
        self.drafts: Any = SimpleNamespace(seen=0, known=bytes(9 << 20))

    def stream(self, prompt: Sequence[int], settings: Count) -> Iterator[list[list[int]]]:
        try:
            for step in range(settings.steps):
                if (self.ranks.rank, step) == (1, 2):
                    if PLAY == "die":
                        os.kill(os.getpid(), signal.SIGKILL)
                    if PLAY == "fail":
                        raise ValueError("the weights are gone")
                    if PLAY == "slow":
                        time.sleep(1)
                self.drafts.seen += 1
                rows = self.ranks.gather([self.ranks.rank, prompt[0], step, self.drafts.seen])
                if any(row[2] < 0 for row in rows):
                    return
                yield rows
        except GeneratorExit:
            self.ranks.gather([self.ranks.rank, prompt[0], -1, 0])


def show(**values: Any) -> None:
    print(json.dumps(values), flush=True)


def lead(request: Request, answers: Sequence[Count]) -> None:
    with started(request, module="tests.parallel.ranks") as leader, ctrl_c() as cancelled:
        joined = leader.join()
        assert joined is not None
        session = Counting(joined.processes)
        group: Any = SimpleNamespace(begun=0)
        crew = Followers(joined.processes, group)
        for number, settings in enumerate(answers):
            with crew.answering([number], settings, session.drafts):
                group.begun += 1
                for rows in (events := session.stream([number], settings)):
                    show(rows=rows)
                    time.sleep(float(os.environ.get("PAUSE", "0")))
                    if cancelled():
                        events.close()
                        show(cancelled=True)
                        return


def main(arguments: Sequence[str]) -> int:
    if not arguments:
        if PLAY == "import":
            raise ImportError("no such library")
        return as_child(lambda _: Counting)
    size, *steps = map(int, arguments)
    seed = 7 if is_follower() and PLAY == "seed" else 3
    request = Request(parallel=size or None, device="cpu", seed=seed)
    try:
        if is_follower():
            return run(request, lambda _: Counting)
        lead(request, [Count(n) for n in steps])
    except (LadeError, DecoderError, NewDecoderError) as error:
        print(f"lade: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(code)
