"""`lade bench`: load, measure, show, write reports."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from .. import files, suites
from ..errors import INTERRUPTED, LadeError, UsageError, counted
from ..session import opening
from ..view.terminal import Terminal, ctrl_c
from . import methods, report
from .result import (
    PLAIN,
    SCHEMA,
    STOCK_COMPILED,
    Conditions,
    Machine,
    MeasuredModel,
    Result,
    Skipped,
    command_line,
    now,
    sampling_shown,
    to_json,
)
from .runners import MethodRunner, OwnRunner
from .tasks import BenchTask, make_dialogues, make_passages, split_usable

if TYPE_CHECKING:
    from ..options.commands import BenchRequest
    from ..session.dialogue import Row
    from ..session.session import Session, Settings
    from .methods import Sweep

PROMPTS = 6
"""Of the builtin suite, without --limit: as few as an interval needs."""
PASSAGES = 3
"""Of every length, in a sweep over contexts."""


def run(request: BenchRequest) -> int:
    """Measure, show what was found, and write the reports.

    Returns:
        The exit code: 0, 1 if a method failed, 130 after Ctrl-C.
    """
    swept = methods.check(request)
    paths = list(map(files.expanded, request.report or []))
    for path in paths:
        report.check(path)
        if path.resolve() == files.expanded(request.prompts).resolve():
            raise UsageError(f"--prompts and --report are the same file, {path}; name another")
    terminal = Terminal(request.color, request.quiet)
    prompts = None
    if "context" not in swept:
        prompts = suites.load(request.prompts, offline=request.offline)
    with opening.open_with_ranks(request, terminal) as session:
        with ctrl_c() as cancelled:
            result = _measure(request, session, swept, prompts, terminal, cancelled)
        if result is None:
            terminal.say("stopped before anything was measured")
            return INTERRUPTED
        try:  # files first: the reader of the table may close the pipe
            for path in paths:
                report.write(result, path)
                terminal.say(f"written to {path}")
        finally:
            if request.json:
                print(to_json(result))
            else:
                report.show(result, terminal.console(sys.stdout, columns=report.COLUMNS))
        if result.interrupted:
            terminal.say("stopped early; what was measured until then is shown")
            return INTERRUPTED
        return LadeError.exit_code if any(failure.row for failure in result.failures) else 0


def _measure(
    request: BenchRequest,
    session: Session,
    swept: Sweep,
    prompts: Sequence[Row] | None,
    terminal: Terminal,
    cancelled: Callable[[], bool],
) -> Result | None:
    """Measure; None if it was cancelled before anything was measured."""
    from .measure import Measurement  # and with it torch, which is loaded by now

    created, loaded, choice = now(), session.loaded, session.choice
    chosen, refused = methods.choose(request, choice, loaded.defaults.without_samples, swept)
    template = request.template(session.has_template) if prompts is not None else None
    chosen = [(method, replace(each, template=template)) for method, each in chosen]
    tasks, skipped = _make_tasks(request, session, swept, prompts, terminal)
    runners = _prepare(chosen, session, tasks, terminal, cancelled)
    sizes = {"prompt": len(tasks), "method": len(runners), "repeat": request.repeat}
    terminal.say(f"measuring {' × '.join(counted(size, of) for of, size in sizes.items())}")
    with terminal.bar("measuring", len(runners) * len(tasks) * request.repeat) as progress:
        measured = Measurement(
            runners, loaded.device, cancelled, progress, partial(_announce, terminal)
        )
        measured.run(tasks, request.repeat)
    if not measured.runs and measured.interrupted:
        return None
    if not measured.runs:
        raise LadeError(f"nothing could be measured: {measured.failures[0].error}")
    names = [method.name for method, _ in chosen]
    return Result(
        schema=SCHEMA,
        created=created,
        seconds=round(measured.seconds, 3),
        interrupted=measured.interrupted,
        reference=PLAIN if PLAIN in names else names[0] if len(names) > 1 else None,
        machine=Machine.of(session),
        model=MeasuredModel.of(session),
        conditions=_conditions(request, session, swept, len(tasks), chosen[0][1]),
        methods=tuple(method for method, _ in chosen),
        runs=tuple(measured.runs),
        skipped=(*skipped, *measured.skipped.values()),
        failures=(*refused, *measured.failures),
        time_spent=measured.time_spent(),
    )


def _announce(terminal: Terminal, seconds: float) -> None:
    """Say how long the rest of a measurement takes."""
    if seconds:
        time = f"{seconds:.0f} seconds" if seconds < 100 else f"{seconds / 60:.0f} minutes"
        terminal.say(f"this will take about {time} more; Ctrl-C keeps what was measured until then")


def _make_tasks(
    request: BenchRequest,
    session: Session,
    swept: Sweep,
    prompts: Sequence[Row] | None,
    terminal: Terminal,
) -> tuple[Sequence[BenchTask], list[Skipped]]:
    """Make the tasks of all methods, and list those that the context has no room for.

    Without `prompts`, that is passages of the contexts in `swept`.
    """
    if prompts is not None:
        limit = request.limit or (PROMPTS if request.prompts == suites.BUILTIN else None)
        rows = suites.some(prompts, limit)
        return make_dialogues(session, request, rows, terminal, request.max_new_tokens)
    lengths = [int(value) for value in swept["context"]]
    found = split_usable(
        make_passages(session, lengths, request.limit or PASSAGES, request.max_new_tokens)
    )
    terminal.say(*session.new_notices())
    return found


def _conditions(
    request: BenchRequest, session: Session, swept: Sweep, rows: int, first: Settings
) -> Conditions:
    """The conditions of a result; `first` are the settings of any method: all sample alike."""
    return Conditions(
        prompts="passages" if "context" in swept else Path(request.prompts).name,
        rows=rows,
        repeat=request.repeat,
        max_new_tokens=request.max_new_tokens,
        ignore_eos=request.ignore_eos,
        template=first.template is not None,
        sampling=sampling_shown(first.sampling),
        profile=session.choice.profile,
        sweep=swept,
        command=command_line(sys.argv[1:]),
        ranks=session.ranks,
        parallel_mode=request.parallel_mode if session.ranks > 1 else None,
    )


def _prepare(
    chosen: Sequence[methods.Chosen],
    session: Session,
    tasks: Sequence[BenchTask],
    terminal: Terminal,
    cancelled: Callable[[], bool],
) -> list[MethodRunner]:
    """The methods on the model."""
    from .stock import StockRunner

    runners: list[MethodRunner] = []
    for method, settings in chosen:
        if not method.foreign:
            runners.append(OwnRunner(method, session, settings))
            continue
        compiled = method.strategy == STOCK_COMPILED
        room = max(task.room for task in tasks) if compiled else 0
        stock = StockRunner(method, session, settings, room)
        if compiled:
            terminal.say(
                f"compiling the steps of {method.name}, which can take minutes; Ctrl-C twice"
                " stops it at once"
            )
            stock.prepare(tasks[0].first(), cancelled)
        runners.append(stock)
    return runners
