"""`lade tune`: measure what steps take here, for longer than a load does, and keep it."""

from __future__ import annotations

import json
import os
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from ..decoder.step_cost import FEWEST, StepCost
from ..errors import LadeError
from ..options.drafting import DraftOptions
from ..profiles import measured, user
from ..session import opening
from ..specs.device import cores
from ..view import screen
from ..view.terminal import Terminal

if TYPE_CHECKING:
    from ..options.commands import TuneRequest

SCHEMA = 2
PARTS = 10
"""Parts of the time, after each of which the bar moves on."""
DISAGREE = 1.3
"""How many times as long as its fastest step the usual one of a width may take."""


def run(request: TuneRequest) -> int:
    """Measure the steps of a model, print a table and keep the result; returns the exit code, 0."""
    terminal = Terminal(request.color, request.quiet)
    # Without drafts a load measures nothing.
    session = opening.open_session(request, terminal, DraftOptions(strategy="autoregressive"))
    decoder, loaded = session.decoder, session.loaded
    if decoder.runner.model.drafts == "none":
        raise LadeError(f"{loaded.name} is decoded one token at a time: no step is wider")
    found: dict[int, list[float]] = {}
    try:
        with terminal.bar(f"measuring for {request.seconds:g} s", PARTS) as advance:
            for _ in range(PARTS):
                part = measured.run(decoder, loaded.device, request.seconds / PARTS, found)
                for width, times in part.items():
                    found.setdefault(width, []).extend(times)
                advance(1)
    except KeyboardInterrupt:
        terminal.say("stopped; nothing was written")
        raise
    if len(found) < FEWEST:
        raise LadeError(
            f"{request.seconds:g} s are too few for steps of {FEWEST} widths; give --seconds"
            f" {max(10.0, 10 * request.seconds):g}"
        )
    seconds = {width: min(times) for width, times in sorted(found.items())}
    key, path = measured.key_of(decoder, loaded.device, loaded.spec), measured.path()
    kept = not request.dry_run and measured.keep(key, seconds)
    cost, doubts = StepCost().measured(seconds), [*_doubts(found)]
    rows = [
        {
            "width": width,
            "milliseconds": round(1e3 * took, 4),
            "cost": round(cost.at(width, 0), 3),
            "steps": len(found[width]),
        }
        for width, took in seconds.items()
    ]
    if request.json:
        print(
            json.dumps(
                {
                    "schema": SCHEMA,
                    "model": loaded.name,
                    "device": user.key_of(loaded.device),
                    "key": key,
                    "steps": rows,
                    "doubts": doubts,
                    "file": str(path) if kept else None,
                }
            )
        )
    else:
        _show(rows, user.key_of(loaded.device), terminal)
    if doubts:
        terminal.say(f"{'; '.join(doubts)}: run lade tune again when the machine is quiet")
    if kept:
        terminal.say(f"kept in {path} for models like this one; delete the file to undo it")
    elif request.dry_run:
        terminal.say("nothing was written (--dry-run)")
    else:
        raise LadeError(f"nothing was kept: {path} cannot be written")
    return 0


def _show(rows: Sequence[Mapping[str, float]], device: str, terminal: Terminal) -> None:
    cells = [
        (f"{row['width']}", f"{row['milliseconds']:.2f}", f"{row['cost']:.2f}") for row in rows
    ]
    columns = tuple(map(screen.Column, ("tokens", "ms", "plain steps")))
    table = screen.Table(f"What a step takes ({device})", columns, tuple(cells))
    screen.print_table(table, terminal.console(sys.stdout))


def _doubts(found: Mapping[int, Sequence[float]]) -> Iterator[str]:
    """Yield reasons to doubt the times of steps, by width."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    if load > cores() + 0.5:
        yield f"other programs kept the processor busy (a load of {load:.1f} on {cores()} cores)"
    worst = max(statistics.median(times) / min(times) for times in found.values())
    if worst > DISAGREE:
        yield f"repeats of a step disagree, by a factor of {worst:.1f}"
