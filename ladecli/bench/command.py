"""`lade bench`: load a model, measure methods, show the result and write reports."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import files, suites
from ..errors import INTERRUPTED, LadeError, UsageError, counted
from ..session import opening
from ..view.terminal import Terminal, ctrl_c
from . import methods, report
from .result import (
    PLAIN,
    SCHEMA,
    STOCK_COMPILED,
    Result,
    SkippedRow,
    command_line,
    describe_machine,
    describe_model,
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
"""The number of prompts of the builtin suite without --limit: the fewest for an interval."""
PASSAGES = 3
"""The number of passages per length in a sweep over contexts."""


def run(request: BenchRequest) -> int:
    """Measure, write the reports and show the result.

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
        return LadeError.exit_code if result.failures else 0


def _measure(
    request: BenchRequest,
    session: Session,
    swept: Sweep,
    prompts: Sequence[Row] | None,
    terminal: Terminal,
    cancelled: Callable[[], bool],
) -> Result | None:
    """Measure; return None if nothing was measured before Ctrl-C."""
    from .measure import Measurement  # and with it torch, which is loaded by now

    created, loaded = now(), session.loaded
    chosen = methods.choose(request, session.choice, loaded.defaults.without_samples, swept)
    template = request.template(session.has_template) if prompts is not None else None
    chosen = [(method, replace(settings, template=template)) for method, settings in chosen]
    tasks, skipped = _make_tasks(request, session, swept, prompts, terminal)
    runners = _make_runners(chosen, session, max(task.room for task in tasks), terminal)
    sizes = {"prompt": len(tasks), "method": len(runners), "repeat": request.repeat}
    terminal.say(f"measuring {' × '.join(counted(size, of) for of, size in sizes.items())}")
    with terminal.bar("measuring", len(runners) * len(tasks) * request.repeat) as progress:
        measured = Measurement(runners, loaded.device, cancelled, progress)
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
        machine=describe_machine(session),
        model=describe_model(session),
        conditions=_conditions(request, session, swept, tasks, chosen[0][1]),
        contenders=tuple(method for method, _ in chosen),
        runs=tuple(measured.runs),
        skipped=(*skipped, *measured.skipped.values()),
        failures=tuple(measured.failures),
        time_spent=measured.time_spent(),
    )


def _conditions(
    request: BenchRequest,
    session: Session,
    swept: Sweep,
    tasks: Sequence[BenchTask],
    settings: Settings,
) -> dict[str, Any]:
    """Return the conditions of the result; `settings` are of any method, since all have the same
    sampling."""
    return {
        "prompts": "passages" if "context" in swept else Path(request.prompts).name,
        "rows": len(tasks),
        "repeat": request.repeat,
        "max_new_tokens": request.max_new_tokens,
        "ignore_eos": request.ignore_eos,
        "template": settings.template is not None,
        "sampling": sampling_shown(settings.sampling),
        "profile": session.choice.profile,
        "sweep": swept,
        "command": command_line(sys.argv[1:]),
        "ranks": session.ranks,
        "parallel_mode": request.parallel_mode if session.ranks > 1 else None,
    }


def _make_runners(
    chosen: Sequence[methods.Chosen], session: Session, room: int, terminal: Terminal
) -> list[MethodRunner]:
    """Return a runner for each method; `room` is the length of a static cache, in tokens."""
    from .stock import StockRunner

    runners: list[MethodRunner] = []
    for method, settings in chosen:
        if method.strategy == STOCK_COMPILED:
            terminal.say(
                f"compiling the steps of {method.name} can take minutes; Ctrl-C twice stops it"
            )
        if method.foreign:
            runners.append(StockRunner(method, session, settings, room))
        else:
            runners.append(OwnRunner(method, session, settings))
    return runners


def _make_tasks(
    request: BenchRequest,
    session: Session,
    swept: Sweep,
    prompts: Sequence[Row] | None,
    terminal: Terminal,
) -> tuple[Sequence[BenchTask], list[SkippedRow]]:
    """Return the tasks of all methods, and the rows for which the context has no room.

    Without `prompts`, the tasks are passages of the contexts in `swept`.
    """
    if prompts is not None:
        limit = request.limit or (PROMPTS if request.prompts == suites.BUILTIN else None)
        rows = suites.some(prompts, limit)
        return make_dialogues(session, request, rows, terminal, request.max_new_tokens)
    lengths = [int(value) for value in swept["context"]]
    passages = make_passages(session, lengths, request.limit or PASSAGES, request.max_new_tokens)
    terminal.say(*session.new_notices())
    return split_usable(passages)
