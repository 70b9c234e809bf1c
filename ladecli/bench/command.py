"""`lade bench`: load, measure, show, write reports."""

from __future__ import annotations

import dataclasses
import datetime
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from .. import opening, suites
from ..decoder.config import SamplingConfig
from ..decoder.errors import PromptError
from ..errors import INTERRUPTED, LadeError, UsageError, told
from ..view.terminal import Terminal, ctrl_c
from . import methods, report
from .result import (
    PLAIN,
    STOCK_COMPILED,
    Ceiling,
    Conditions,
    Machine,
    Model,
    Result,
    Skipped,
    command_line,
    sampling_shown,
    to_json,
)
from .runners import StockRunner, runner
from .tasks import Dialogue, Task, passages

if TYPE_CHECKING:
    from ..options import BenchRequest
    from ..profiles import Choice
    from ..session import Session
    from ..suites import Suite
    from .measure import Measured
    from .methods import Methods, Sweep

PASSAGES = 3
"""Of every length, in a sweep over contexts."""


def run(request: BenchRequest) -> int:
    """Measure, show what was found, and write the reports.

    Returns:
        The exit code: 0, 1 if a method failed, 130 after Ctrl-C.

    Raises:
        LadeError, DecoderError: with a line for the user.
    """
    swept = methods.check(request)
    paths = [Path(name).expanduser() for name in request.report or []]
    for path in paths:
        report.check(path)
    opening.check(request)
    terminal = Terminal(request.color, request.quiet)
    suite = None
    if "context" not in swept:
        watched = not request.quiet and sys.stderr.isatty()
        suite = suites.load(request.prompts, offline=request.offline, progress=watched)
    longest = max(map(int, swept.get("context", ())), default=0)
    stretch = longest + request.new_tokens if longest else 0
    with opening.opened(request, terminal, stretch=stretch) as session:
        benchmark = Benchmark(request, session, swept, suite)
        with ctrl_c() as cancelled, terminal.bar("measuring", benchmark.runs) as progress:
            result = benchmark.measure(cancelled, progress, terminal.say)
            stopped = cancelled()
        if result is None:
            terminal.say("stopped before anything was measured")
            return INTERRUPTED
        # Files first: the reader of the table may close the pipe.
        failures = [_written(result, path, terminal) for path in paths]
        if request.json:
            print(to_json(result))
        else:
            report.show(result, terminal.console(sys.stdout))
        if failure := next(filter(None, failures), None):
            raise failure
        if result.interrupted or stopped:
            terminal.say("stopped early; what was measured until then is shown")
            return INTERRUPTED
        return LadeError.exit_code if any(failure.row for failure in result.failures) else 0


def _written(result: Result, path: Path, terminal: Terminal) -> LadeError | None:
    """Write a report; an error is returned, so that the table is shown before it."""
    try:
        report.write(result, path)
    except LadeError as error:
        return error
    except Exception as error:  # what was measured must be shown all the same
        return LadeError(f"--report {path} cannot be made: {told(error)}")
    terminal.say(f"written to {path}")
    return None


class Benchmark:
    """One benchmark, its model loaded.

    Args:
        request: what was asked for.
        session: the model.
        swept: the axes of its sweep.
        suite: prompts; None where contexts are swept.

    Raises:
        UsageError: no prompt can be measured, or no cell of the sweep can run.
        ConfigError: settings contradict themselves.
    """

    def __init__(
        self, request: BenchRequest, session: Session, swept: Sweep, suite: Suite | None
    ) -> None:
        self._request = dataclasses.replace(request, max_new_tokens=request.new_tokens)
        self._session = session
        self._swept = swept
        self._suite = suite
        self._template = session.has_template and not request.raw and suite is not None
        self._created = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
        self._choice: Choice = opening.choose_profile(request, session)
        greedy = SamplingConfig(repetition_penalty=session.loaded.repetition_penalty)
        self._methods: Methods = methods.choose(self._request, self._choice, greedy, swept)
        self._tasks, self._skipped = self._usable()

    @property
    def runs(self) -> int:
        """Conversations to be measured, over all methods and repeats."""
        return len(self._methods.chosen) * len(self._tasks) * self._request.repeat

    def measure(
        self,
        cancelled: Callable[[], bool],
        progress: Callable[[int], None],
        say: Callable[[str], None],
    ) -> Result | None:
        """Measure; after Ctrl-C, what is done makes a result, too.

        Args:
            cancelled: asked after every step.
            progress: called with the number of runs that were done since the last call.
            say: shows a line to the user.

        Returns:
            None if it was cancelled before anything was measured.

        Raises:
            LadeError: nothing could be measured.
        """
        from .measure import PROMPT, Measurement  # and with it torch, which is loaded by now

        names = {method.name for method, _ in self._methods.chosen}
        room = max(task.room for task in self._tasks) if STOCK_COMPILED in names else 0
        runners = [
            runner(method, self._session, settings, room)
            for method, settings in self._methods.chosen
        ]
        compiled = [each for each in runners if isinstance(each, StockRunner) and each.steps]
        for each in compiled:
            say(
                f"compiling the steps of {each.method.name}, which can take minutes;"
                " Ctrl-C twice stops it at once"
            )
            each.compile(self._tasks[0].first()[:PROMPT], cancelled)
        measurement = Measurement(runners, self._session.loaded.device, cancelled, progress)
        measured = measurement.run(self._tasks, self._request.repeat)
        if not measured.runs and measured.interrupted:
            return None
        if not measured.runs:
            raise LadeError(f"nothing could be measured: {measured.failures[0].error}")
        return self._result(measured, sum(each.steps.seconds for each in compiled if each.steps))

    def _usable(self) -> tuple[list[Task], list[Skipped]]:
        """Prompts to be measured, and those that cannot be."""
        found = [(task, _obstacle(task)) for task in self._offered()]
        tasks = [task for task, reason in found if reason is None]
        skipped = [Skipped(task.id, reason) for task, reason in found if reason is not None]
        if not tasks:
            fix = "lower -n, raise --max-context, or give shorter --prompts"
            if self._suite is None:
                fix = "sweep a smaller context"
            first = skipped[0]
            raise UsageError(f"no prompt can be measured: {first.row}: {first.reason}; {fix}")
        return tasks, skipped

    def _offered(self) -> Sequence[Task]:
        request, session = self._request, self._session
        if self._suite is None:
            lengths = [int(value) for value in self._swept["context"]]
            return passages(session, lengths, request.limit or PASSAGES, request.new_tokens)
        return [
            Dialogue(session, row, self._template, request.system, request.new_tokens)
            for row in suites.some(self._suite.rows, request.limit)
        ]

    def _result(self, measured: Measured, compile_seconds: float) -> Result:
        from ..decoder.memory import attempt
        from ..device import measure_rates

        request, loaded = self._request, self._session.loaded
        chosen = tuple(method for method, _ in self._methods.chosen)
        names = [method.name for method in chosen]
        spent, ranks = measured.spent, self._session.ranks
        rates = attempt(measure_rates, loaded.device, loaded.spec.compute) if spent else None
        return Result(
            created=self._created,
            seconds=round(measured.seconds, 3),
            overhead=round(measured.overhead, 5),
            interrupted=measured.interrupted,
            reference=PLAIN if PLAIN in names else names[0] if len(names) > 1 else None,
            machine=Machine.of(self._session),
            model=Model.of(self._session, request),
            attention_why=self._session.setup.attention.why,
            conditions=Conditions(
                prompts="passages" if self._suite is None else Path(self._suite.name).name,
                rows=len(self._tasks),
                repeat=request.repeat,
                max_new_tokens=request.new_tokens,
                ignore_eos=request.ignore_eos,
                template=self._template,
                sampling=sampling_shown(self._methods.chosen[0][1].sampling),
                profile=self._choice.profile,
                sweep=self._swept,
                command=command_line(sys.argv[1:]),
                ranks=ranks,
                parallel_mode=request.parallel_mode if ranks > 1 else None,
            ),
            contenders=chosen,
            runs=tuple(measured.runs),
            skipped=(*self._skipped, *measured.skipped.values()),
            failures=(*self._methods.refused, *measured.failures),
            time_spent=tuple(
                spent[name].summary(name, loaded.part) for name in names if name in spent
            ),
            ceiling=None if rates is None else Ceiling(rates.bandwidth, rates.arithmetic),
            compile_seconds=round(compile_seconds, 3),
        )


def _obstacle(task: Task) -> str | None:
    """Why the first prompt of a task cannot be measured; None if it can."""
    try:
        task.first()
    except (UsageError, PromptError) as error:
        return str(error)
    return None
