"""`lade tune`: measure the duration of steps, for longer than a load does, and keep the result."""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..decoder.step_cost import FEWEST, StepCost
from ..errors import LadeError
from ..options.drafting import DraftOptions
from ..profiles import measured, user
from ..session import opening
from ..view import screen
from ..view.terminal import Terminal

if TYPE_CHECKING:
    from ..options.commands import TuneRequest

SCHEMA = 3
DISAGREE = 1.3
"""If the median time of a step is this many times the fastest one, the machine was busy."""


def run(request: TuneRequest) -> int:
    """Measure the steps of a model, print a table and keep the result; return 0."""
    terminal = Terminal(request.color, request.quiet)
    # Without drafts, the load itself measures nothing.
    session = opening.open_session(request, terminal, DraftOptions(strategy="autoregressive"))
    decoder, loaded = session.decoder, session.loaded
    if decoder.executor.model.drafts == "none":
        raise LadeError(f"{loaded.name} is decoded one token at a time: no step is wider")
    try:
        with terminal.progress(f"measuring for {request.seconds:g} s"):
            times = measured.run(decoder, loaded.device, request.seconds, ())
    except KeyboardInterrupt:
        terminal.say("stopped; nothing was written")
        raise
    if len(times) < FEWEST:
        raise LadeError(
            f"{request.seconds:g} s is too short for steps of {FEWEST} widths; give --seconds"
            f" {max(10.0, 10 * request.seconds):g}"
        )
    seconds = {width: min(took) for width, took in sorted(times.items())}
    key, path = measured.key_of(decoder, loaded.device, loaded.spec), measured.path()
    kept = not request.dry_run and measured.keep(key, seconds)
    cost = StepCost().measured(seconds)
    measurement = {
        "schema": SCHEMA,
        "model": loaded.name,
        "device": user.key_of(loaded.device),
        "key": key,
        "steps": [
            {
                "width": width,
                "milliseconds": round(1e3 * took, 4),
                "cost": round(cost.at(width, 0), 3),
                "steps": len(times[width]),
            }
            for width, took in seconds.items()
        ],
        "file": str(path) if kept else None,
    }
    print(json.dumps(measurement)) if request.json else _show(measurement, terminal)
    # The fastest step of a width counts; if the median is far from it, other programs were running.
    if max(statistics.median(took) / min(took) for took in times.values()) > DISAGREE:
        terminal.say("other programs disturbed the steps: run lade tune again on a quiet machine")
    if kept:
        terminal.say(f"kept in {path} for models like this one; delete the file to undo it")
    elif request.dry_run:
        terminal.say("nothing was written (--dry-run)")
    else:
        raise LadeError(f"nothing was kept: {path} cannot be written")
    return 0


def _show(measurement: Mapping[str, Any], terminal: Terminal) -> None:
    cells = tuple(
        (f"{row['width']}", f"{row['milliseconds']:.2f}", f"{row['cost']:.2f}")
        for row in measurement["steps"]
    )
    columns = tuple(map(screen.Column, ("tokens", "ms", "plain steps")))
    table = screen.Table(f"What a step takes ({measurement['device']})", columns, cells)
    screen.print_table(table, terminal.console(sys.stdout))
