"""`lade bench`: contenders side by side on this machine, and what it means."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from .. import launch, suites
from ..errors import INTERRUPTED, LadeError, told
from ..terminal import Terminal, ctrl_c
from . import lineup, record, report

if TYPE_CHECKING:
    from ..session import Session
    from ..settings import BenchRequest
    from ..suites import Suite
    from .result import Result


def run(request: BenchRequest) -> int:
    """Measure, show what was found, and write the reports.

    Returns:
        The exit code: 0, 1 if a contender failed, 130 after Ctrl-C.

    Raises:
        LadeError, DecoderError: with a line for the user.
    """
    swept = lineup.check(request)
    paths = [Path(name).expanduser() for name in request.report or []]
    for path in paths:
        report.check(path)
    launch.check(request)
    terminal = Terminal(request.color, request.quiet)
    suite = None
    if "context" not in swept:
        watched = not request.quiet and sys.stderr.isatty()
        suite = suites.load(request.prompts, offline=request.offline, progress=watched)
    stretch = lineup.longest(swept, request.new_tokens)
    with launch.opened(request, terminal, stretch=stretch) as session:
        return _measure(request, session, swept, suite, paths, terminal)


def _measure(
    request: BenchRequest,
    session: Session,
    swept: Mapping[str, tuple[str, ...]],
    suite: Suite | None,
    paths: Sequence[Path],
    terminal: Terminal,
) -> int:
    """Measure with a model that is loaded, show and write what was found; the exit code."""
    from .benchmark import Benchmark  # and with it torch, which is there by now

    benchmark = Benchmark(request, session, swept, suite, terminal.say)
    with ctrl_c() as cancelled, terminal.bar("measuring", benchmark.runs) as progress:
        result = benchmark.measure(cancelled, progress)
        stopped = cancelled()
    if result is None:
        terminal.say("stopped before anything was measured")
        return INTERRUPTED
    # Files first: whoever reads the table may have seen enough of it, and closed the pipe.
    failures = [_written(result, path, terminal) for path in paths]
    if request.json:
        print(record.text(result))
    else:
        report.show(result, terminal.console(sys.stdout))
    if failure := next(filter(None, failures), None):
        raise failure
    if result.interrupted or stopped:
        terminal.say(f"stopped early; {benchmark.rest}")
        return INTERRUPTED
    benchmark.finish()
    return LadeError.exit_code if any(failure.row for failure in result.failures) else 0


def _written(result: Result, path: Path, terminal: Terminal) -> LadeError | None:
    """Write a report; a failure waits until the table was shown."""
    try:
        report.write(result, path)
    except LadeError as error:
        return error
    except Exception as error:  # whatever drew it: what was measured is still to be shown
        return LadeError(f"--report {path} cannot be made: {told(error)}")
    terminal.say(f"written to {path}")
    return None
