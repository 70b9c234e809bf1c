"""What watching a reply costs: decoding with the live view over decoding without any.

    python benchmarks/view.py

Both arms consume the same events of a session, prompt by prompt in turns.  One draws them on a
pseudo-terminal that another process reads, as a terminal does; the other collects the text and
writes it at the end.  The clock runs from the first step's event to the end of the reply, so that
reading the prompt does not count.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import TextIO

from common import argument_parser, print_head, print_row, save, spread
from rich.console import Console

import ladecli
from ladecli import suites
from ladecli.events import TextEvent, TextStep
from ladecli.metrics import Tally
from ladecli.view.live import LiveView
from ladecli.view.markdown import MarkdownRenderer
from ladecli.visualize import together


@contextlib.contextmanager
def pseudo_terminal() -> Iterator[TextIO]:
    """A terminal to write to, read by another process: it shares no lock with us."""
    ours, theirs = os.openpty()
    with subprocess.Popen(["cat"], stdin=ours, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT):
        os.close(ours)
        # Once the last writer is gone, the reader ends too.
        with open(theirs, "w", encoding="utf-8") as stream:
            yield stream


def watched(events: Iterator[TextEvent], stream: TextIO) -> None:
    """Show a reply by the view."""
    console = Console(
        file=stream, force_terminal=True, color_system="256", width=100, height=40, highlight=False
    )
    renderer, tally = MarkdownRenderer(markdown=True, colours=True), Tally()
    with together(tally, LiveView(console, tally, renderer, max_context=2048)) as show:
        for event in events:
            show(event)


def unwatched(events: Iterator[TextEvent], stream: TextIO) -> None:
    """Write a reply when it is complete."""
    tally = Tally()
    for event in events:
        tally.add(event)
    stream.write(f"{tally.text}\n")
    stream.flush()


def seconds(
    arm: Callable[[Iterator[TextEvent], TextIO], None], events: Iterator[TextEvent], stream: TextIO
) -> float:
    """Seconds from the first step's event to the end of what an arm does."""
    began = 0.0

    def clocked() -> Iterator[TextEvent]:
        nonlocal began
        for event in events:
            if isinstance(event, TextStep):
                began = began or time.perf_counter()
            yield event

    arm(clocked(), stream)
    return time.perf_counter() - began


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--model", default="demo")
    parser.add_argument("-n", "--new-tokens", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    model = ladecli.load(args.model)
    prompts = [row.turns[0] for row in suites.some(suites.load(suites.BUILTIN), 8)]
    throughput: list[list[float]] = [[] for _ in prompts]
    with pseudo_terminal() as terminal, open(os.devnull, "w", encoding="utf-8") as nowhere:
        arms = [(watched, terminal), (unwatched, nowhere)]
        for number in range(args.rounds + 1):
            for prompt, found in zip(prompts, throughput, strict=True):
                taken = {}
                for arm, stream in arms if number % 2 else arms[::-1]:
                    model.session.start_over()
                    chat = [{"role": "user", "content": prompt}]
                    events = model.stream(chat, max_new_tokens=args.new_tokens, ignore_eos=True)
                    taken[arm] = seconds(arm, events, stream)
                if number:  # the first round warms up
                    found.append(taken[unwatched] / taken[watched])
    by_prompt = [statistics.median(found) for found in throughput]
    print_head("throughput with the view", "lowest prompt")
    print_row(spread(by_prompt), min(by_prompt))
    save(args, {"by_prompt": by_prompt})


if __name__ == "__main__":
    main()
