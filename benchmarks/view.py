"""What watching a reply costs: decoding with the live view over decoding without any.

    python benchmarks/view.py

Both arms consume the same events of `Session.stream`, prompt by prompt in turns.  One draws them
on a pseudo-terminal that another process reads, as a terminal does; the other collects the text
and writes it at the end.  The clock runs from the first step's event to the end of the reply, so
that reading the prompt does not count.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import TextIO

from common import arguments, opened, print_head, print_row, save, spread
from rich.console import Console

from ladecli import profiles
from ladecli.decoder.drafting.store import DraftStore
from ladecli.events import Ended, TextEvent, TextStep
from ladecli.metrics import Tally
from ladecli.session.session import Session, Settings
from ladecli.view.live import LiveView
from ladecli.view.markdown import MarkdownRenderer
from ladecli.visualize import Together


@contextlib.contextmanager
def pseudo_terminal() -> Iterator[TextIO]:
    """A terminal to write to, read by another process: it shares no lock with us."""
    ours, theirs = os.openpty()
    with subprocess.Popen(
        ["cat"], stdin=ours, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ):
        os.close(ours)
        # Once the last writer is gone, the reader ends too.
        with open(theirs, "w", encoding="utf-8") as stream:
            yield stream


def watched(events: Iterator[TextEvent], stream: TextIO) -> float:
    """Seconds of a reply with the view."""
    console = Console(
        file=stream, force_terminal=True, color_system="256", width=100, height=40, highlight=False
    )
    renderer = MarkdownRenderer(markdown=True, colours=True)
    tally, began = Tally(), 0.0
    view = Together(tally, LiveView(console, tally, renderer, max_context=2048))
    for event in events:
        if not began and isinstance(event, TextStep):
            began = time.perf_counter()
        view.show(event)
    view.finish()
    return time.perf_counter() - began


def unwatched(events: Iterator[TextEvent], stream: TextIO) -> float:
    """Seconds of a reply that is written when it is complete."""
    text, began = list[str](), 0.0
    for event in events:
        match event:
            case TextStep():
                began = began or time.perf_counter()
                text += [piece.text for piece in event.pieces]
            case Ended():
                text.append(event.rest)
    stream.write("".join(text) + "\n")
    stream.flush()
    return time.perf_counter() - began


def plain_step_of(session: Session) -> float:
    """Median seconds of a plain step."""
    settings = Settings("autoregressive", max_new_tokens=40, ignore_eos=True)
    events = session.stream([5, 6, 7], settings)
    return statistics.median([e.seconds for e in events if isinstance(e, TextStep)][1:])


def main() -> None:
    parser = arguments(__doc__.splitlines()[0])
    parser.set_defaults(limit=8)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    loaded, _, prompts = opened(args)
    session = Session(loaded)
    plain_step = plain_step_of(session)
    config = profiles.select(None, loaded.device, loaded.spec).lookahead
    settings = Settings(lookahead=config, max_new_tokens=args.new_tokens, ignore_eos=True)
    ratios: list[list[float]] = [[] for _ in prompts]
    with pseudo_terminal() as stream, open(os.devnull, "w", encoding="utf-8") as nowhere:
        arms: dict[bool, Callable[[Iterator[TextEvent]], float]] = {
            True: lambda events: watched(events, stream),
            False: lambda events: unwatched(events, nowhere),
        }
        # The first round warms up.
        for round_number in range(args.rounds + 1):
            for prompt, found in zip(prompts, ratios, strict=True):
                seconds: dict[bool, float] = {}
                for arm in (True, False) if round_number % 2 else (False, True):
                    session.drafts = DraftStore()
                    seconds[arm] = arms[arm](session.stream(prompt, settings))
                if round_number:
                    found.append(seconds[False] / seconds[True])
    by_prompt = [statistics.median(found) for found in ratios]
    print_head("plain step, ms", "throughput with the view", "lowest prompt")
    print_row(1e3 * plain_step, spread(by_prompt), min(by_prompt))
    save(args, {"plain_step": plain_step, "by_prompt": by_prompt})


if __name__ == "__main__":
    main()
