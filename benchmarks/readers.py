"""What whoever reads a text adds to a step of a GPU: letters, colours, the live view of a chat.

    python benchmarks/readers.py

As in `host_share.py`, steps are played by a device that only takes its time, and the device begins
as soon as it is asked to.  From one step's event to the next is what a step takes; what it takes
beyond the device is the host's, drafting and drawing alike.  Every reader reads twice, in turns:
while the device is at work on the next step, as it is, and while the device waits, as it would be
if steps were handed on before the next one is under way.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, TextIO
from unittest import mock

import torch
from common import conditions
from host_share import PROMPT, TOKENS, Tape
from rich.console import Console
from view import pseudo_terminal, view_on

from ladecli import models, session
from ladecli.decoder import engine
from ladecli.decoder.config import LookaheadConfig, SamplingConfig
from ladecli.decoder.graphs import GraphRunner
from ladecli.events import TextEvent, TextStep
from ladecli.session import Session, Settings
from ladecli.visualize import ColourWriter

Reader = Callable[[TextEvent], None]


@contextmanager
def nobody(_stream: TextIO, _step: float) -> Iterator[Reader]:
    """Text is made of tokens in any case."""
    yield lambda _: None


@contextmanager
def colours(stream: TextIO, _step: float) -> Iterator[Reader]:
    """As `lade generate` writes on a terminal."""
    console = Console(file=stream, force_terminal=True, color_system="256", highlight=False)
    yield ColourWriter(console).show


@contextmanager
def live(stream: TextIO, step: float) -> Iterator[Reader]:
    """As `lade chat` draws."""
    view = view_on(stream, step, time.perf_counter)
    yield view.show
    view.finish()


_is_ready = GraphRunner.is_ready
READERS = {"nobody": nobody, "lade generate": colours, "lade chat": live}


def read(opened: Session, tape: Tape, settings: Settings, show: Reader, *, play: bool) -> float:
    """Seconds from one step to the next: the median of a text."""
    opened.start_over()
    tape.rewind(play=play)
    marks: list[float] = []
    for event in opened.stream(opened.encode(PROMPT), settings):
        show(event)
        if isinstance(event, TextStep):
            marks.append(time.perf_counter())
    # The first ones read the prompt, or are captured.
    return statistics.median(b - a for a, b in pairwise(marks[2:]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="demo")
    parser.add_argument("--device-ms", type=float, default=3.3, help="of a step on the GPU")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path, help="write the figures here too")
    args = parser.parse_args()
    torch.set_num_threads(1)
    device = args.device_ms / 1000
    tape = Tape(device)
    settings = Settings(
        lookahead=LookaheadConfig(5, 3, 5, 64),
        sampling=SamplingConfig(temperature=1.0, seed=1),
        max_new_tokens=TOKENS,
        ignore_eos=True,
    )
    figures: dict[str, Any] = {}
    # A tape does not compute, which a trial would find out.
    with (
        mock.patch.object(engine, "try_capture", return_value=None),
        mock.patch.object(session, "capture_for", return_value=tape),
        pseudo_terminal() as terminal,
    ):
        opened = Session(models.load(args.model))
        for _ in range(2):
            read(opened, tape, settings, lambda _: None, play=False)
        gc.collect()
        gc.freeze()
        taken: dict[tuple[str, bool], list[float]] = {}
        for _ in range(args.rounds):
            for name, reader in READERS.items():
                for waits in (False, True):
                    ready = {"return_value": False} if waits else {"side_effect": _is_ready}
                    with (
                        mock.patch.object(GraphRunner, "is_ready", autospec=True, **ready),
                        reader(terminal, device) as show,
                    ):
                        seconds = read(opened, tape, settings, show, play=True)
                    taken.setdefault((name, waits), []).append(seconds)
    print(f"{conditions(1)}; a step takes the device {args.device_ms} ms\n")
    print("| read by | host µs | share | while the device waits | share |\n|---|---|---|---|---|")
    for name in READERS:
        beyond = [min(taken[name, waits]) - device for waits in (False, True)]
        shares = [seconds / (seconds + device) for seconds in beyond]
        figures[name] = {"meanwhile": 1e6 * beyond[0], "waiting": 1e6 * beyond[1]}
        print(
            f"| {name} | {1e6 * beyond[0]:.0f} | {shares[0]:.1%} |"
            f" {1e6 * beyond[1]:.0f} | {shares[1]:.1%} |"
        )
    if args.json:
        args.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
