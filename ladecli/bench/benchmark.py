"""One benchmark from its model to its result."""

from __future__ import annotations

import dataclasses
import datetime
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import launch, ways
from ..decoder.config import SamplingConfig
from ..decoder.errors import PromptError
from ..decoder.memory import attempt
from ..errors import LadeError, UsageError
from ..events import Ended
from ..rates import measure_rates
from ..suites import Suite, some
from . import lineup
from .contenders import Own, StockCompiled, player
from .dialogue import Dialogue
from .facts import command_line, described_sampling, fingerprint, machine_of, model_of
from .journal import Journal, Round
from .measure import PROMPT, Measured, Measurement, Stopped, Task
from .passages import passages
from .result import PLAIN, Ceiling, Conditions, Contender, Result, Skipped, TimeSpent
from .where import time_spent

if TYPE_CHECKING:
    from ..session import Session, Settings
    from ..settings import BenchRequest

PASSAGES = 3
"""Of every length, in a sweep over contexts."""


class Benchmark:
    """One benchmark, its model loaded.

    Args:
        request: what was asked for.
        session: the model at work.
        swept: the axes of its sweep.
        suite: prompts; None where lengths are swept.
        say: shows a line to the user.

    Raises:
        UsageError: no prompt can be measured, or not one cell of the sweep can run.
        ConfigError: settings contradict themselves.
    """

    def __init__(
        self,
        request: BenchRequest,
        session: Session,
        swept: Mapping[str, tuple[str, ...]],
        suite: Suite | None,
        say: Callable[[str], None],
    ) -> None:
        self._request = dataclasses.replace(request, max_new_tokens=request.new_tokens)
        self._suite = suite
        self._session = session
        self._swept = swept
        self._say = say
        self._created = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
        self._choice = launch.choose_profile(request, session)
        greedy = SamplingConfig(repetition_penalty=session.loaded.repetition_penalty)
        self._lineup = lineup.line_up(self._request, self._choice, greedy, swept)
        self._template = session.has_template and not request.raw
        self._tasks, self._skipped = self._chosen()
        self._journal = Journal(self._identity(), say)

    @property
    def _settings(self) -> Settings:
        """Those of the first contender; sampling and lengths are the same for all."""
        return self._lineup.contenders[0][1]

    def _chosen(self) -> tuple[list[Task], list[Skipped]]:
        """What is to be measured, and what cannot be."""
        tasks, skipped = list[Task](), list[Skipped]()
        for task in self._offered():
            if reason := _obstacle(task):
                skipped.append(Skipped(task.id, reason))
            else:
                tasks.append(task)
        if not tasks:
            fix = "lower -n, raise --max-context, or give shorter --prompts"
            if self._suite is None:
                fix = "sweep a smaller context"
            raise UsageError(
                f"no prompt can be measured: {skipped[0].row}: {skipped[0].reason}; {fix}"
            )
        return tasks, skipped

    def _offered(self) -> Sequence[Task]:
        request, session = self._request, self._session
        if self._suite is None:
            lengths = {lineup.tokens(value) for value in self._swept["context"]}
            return passages(session, sorted(lengths), request.limit or PASSAGES, request.new_tokens)
        return [
            Dialogue(session, row, self._template, request.system, request.new_tokens)
            for row in some(self._suite.rows, request.limit)
        ]

    @property
    def runs(self) -> int:
        """How many there are, accounts of the time included; a conversation is one."""
        accounts = sum(map(self._accountable, (each for each, _ in self._lineup.contenders)))
        return len(self._lineup.contenders) * len(self._tasks) * self._request.repeat + accounts

    def measure(
        self, cancelled: Callable[[], bool], progress: Callable[[int], None]
    ) -> Result | None:
        """Measure; what is there when it is cancelled makes a result, too.

        Args:
            cancelled: asked after every step.
            progress: called with how many more runs are done.

        Returns:
            None if it was cancelled before anything was measured.

        Raises:
            LadeError: nothing could be measured.
        """
        session = self._session
        players = [
            player(contender, session, settings, self._room)
            for contender, settings in self._lineup.contenders
        ]
        done = self._kept()
        compiled = [each for each in players if isinstance(each, StockCompiled)]
        if len(done) < len(self._tasks) * self._request.repeat:
            self._prepare(compiled, cancelled)
        read = partial(self._read, cancelled=cancelled)
        measurement = Measurement(players, session.loaded.device, cancelled, read, progress)
        measured = measurement.run(self._tasks, self._request.repeat, self._journal, done)
        if not measured.runs and measured.interrupted:
            return None
        if not measured.runs:
            raise LadeError(f"nothing could be measured: {measured.failures[0].error}")
        spent: list[TimeSpent] = []
        if not measured.interrupted:
            own = [p for p in players if isinstance(p, Own) and self._accountable(p.contender)]
            spent, failures = time_spent(session, own, self._tasks, cancelled, progress)
            measured.failures += failures
        return self._result(measured, spent, sum(each.steps.seconds for each in compiled))

    def _room(self) -> int:
        """Tokens of the longest prompt and its answer."""
        return max(task.room for task in self._tasks)

    def _prepare(self, players: Sequence[StockCompiled], cancelled: Callable[[], bool]) -> None:
        """Let those compile that do.

        Raises:
            LadeError: one of them cannot.
        """
        for each in players:
            self._say(
                f"compiling the steps of {each.contender.name}, which can take minutes;"
                " Ctrl-C twice stops it at once"
            )
            each.begin(keep=False)
            each.prepare(self._tasks[0].first()[:PROMPT], cancelled)

    def _accountable(self, contender: Contender) -> bool:
        """Whether it is asked where its time goes: cells and long texts would take too long."""
        return not (contender.foreign or contender.cell or self._suite is None)

    @property
    def rest(self) -> str:
        """What can be done about what is missing, in words."""
        if self._journal.rounds():
            return "the same command with --resume goes on"
        if not self._journal.keeps:
            return "nothing of it is kept for --resume"
        return "not one prompt was through with all contenders, so --resume would start anew"

    def finish(self) -> None:
        """The result is safe: there is nothing left to go on with."""
        self._journal.end()

    def _kept(self) -> list[Round]:
        """The rounds of an unfinished measurement to go on with."""
        self._journal.claim()
        rows, repeats = {task.id for task in self._tasks}, range(1, self._request.repeat + 1)
        rounds = self._journal.rounds()
        # A damaged file may hold others.
        done = [each for each in rounds if each.row in rows and each.repeat in repeats]
        if done and not self._request.resume:
            self._say(
                f"an unfinished measurement of the same ({len(done)} rounds) was put aside; stop"
                " this one and give --resume to go on with it"
            )
            done = []
        elif self._request.resume and not done and self._journal.keeps:
            self._say("there is nothing to resume; this starts anew")
        elif done:
            every = len(rows) * len(repeats)
            next_one = f"going on with round {len(done) + 1} of {every}; the others are kept"
            self._say(next_one if len(done) < every else f"all {every} rounds are there already")
        self._journal.start(done)
        return done

    def _read(self, prompt: list[int], cancelled: Callable[[], bool]) -> None:
        """Read a prompt, so that the keys of its text are there.

        Raises:
            Stopped: it was cancelled.
            LadeError: there is no memory for it.
        """
        plain = dataclasses.replace(self._settings, strategy=PLAIN, max_new_tokens=1)
        for event in self._session.stream(prompt, plain, cancelled):
            if isinstance(event, Ended) and event.reason == "memory":
                raise LadeError(f"out of memory in a prompt of {len(prompt):,} tokens")
        if cancelled():
            raise Stopped

    def _identity(self) -> Any:
        """What must be the same for an unfinished measurement to go on."""
        request = self._request
        return [
            dataclasses.asdict(machine_of(self._session)),
            # How much context there is may depend on what memory is free.
            dataclasses.asdict(model_of(self._session, request)) | {"context": request.max_context},
            fingerprint(self._session.loaded),
            dataclasses.asdict(self._conditions("")),
            [dataclasses.asdict(contender) for contender, _ in self._lineup.contenders],
            [request.revision, request.device_map, request.system, request.stop],
            [task.identity for task in self._tasks],
        ]

    def _result(
        self, measured: Measured, spent: Sequence[TimeSpent], compile_seconds: float
    ) -> Result:
        device, shape = self._session.loaded.device, self._session.loaded.shape
        rates = attempt(measure_rates, device, shape.compute) if spent else None
        names = [contender.name for contender, _ in self._lineup.contenders]
        attention = ways.attention_of(self._request, device, self._session.loaded.part)
        return Result(
            created=self._created,
            seconds=round(measured.before + measured.seconds, 3),
            overhead=round(measured.overhead, 5),
            interrupted=measured.interrupted,
            reference=PLAIN if PLAIN in names else names[0] if len(names) > 1 else None,
            machine=machine_of(self._session),
            model=model_of(self._session, self._request),
            attention_why=attention.why,
            conditions=self._conditions(command_line(sys.argv[1:])),
            contenders=tuple(contender for contender, _ in self._lineup.contenders),
            runs=tuple(measured.runs),
            skipped=(*self._skipped, *measured.skipped.values()),
            failures=(*self._lineup.refused, *measured.failures),
            time_spent=tuple(spent),
            ceiling=None if rates is None else Ceiling(rates.bandwidth, rates.arithmetic),
            compile_seconds=round(compile_seconds, 3),
        )

    def _conditions(self, command: str) -> Conditions:
        request, settings, ranks = self._request, self._settings, self._session.ranks
        return Conditions(
            prompts="passages" if self._suite is None else Path(self._suite.name).name,
            rows=len(self._tasks),
            repeat=request.repeat,
            max_new_tokens=self._request.new_tokens,
            ignore_eos=request.ignore_eos,
            template=self._template and self._suite is not None,
            sampling=described_sampling(settings.sampling),
            profile=self._choice.profile,
            sweep={axis: tuple(values) for axis, values in self._swept.items()},
            command=command,
            ranks=ranks,
            parallel_mode=request.parallel_mode if ranks > 1 else None,
        )


def _obstacle(task: Task) -> str | None:
    """Why a task cannot even be begun."""
    try:
        task.first()
    except (UsageError, PromptError) as error:
        return str(error)
    return None
