"""Methods on the same prompts, in turn: what disturbs the machine disturbs all alike."""

from __future__ import annotations

import contextlib
import gc
import hashlib
import random
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from statistics import fmean

from ..device import Device, peak_memory, watch_peak
from ..errors import LadeError, told
from ..memory import ModelSpec
from ..profiles.derive import work
from .result import Failure, Run, Skipped, TimeSpent
from .runners import Answer, Runner
from .tasks import Task

WARM_UP = 16
"""Steps that every method makes before anything is timed."""
PROMPT = 256
"""Tokens of a prompt to warm up with."""
MAX_FAILURES = 2
"""A method that fails on this many rows in succession is not tried again."""
TRIES = 4
"""A conversation during which steps were compiled or captured is repeated, up to this many times
in all."""


class Stopped(Exception):
    """Ctrl-C, in the middle of an answer."""


@dataclass(slots=True)
class Spent:
    """Where the time of a method goes, added up over its answers.

    Attributes:
        seconds: by part of a step.
        loads: width and context of each step.
    """

    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    loads: list[tuple[int, int]] = field(default_factory=list)

    def add(self, answer: Answer, prompt_tokens: int) -> None:
        """Add the steps after the first of an answer."""
        for part, seconds in answer.parts.items():
            self.seconds[part] += seconds
        contexts = (prompt_tokens + length for length in answer.lengths)
        self.loads += zip(answer.widths[1:], contexts, strict=False)

    def summary(self, method: str, shape: ModelSpec) -> TimeSpent:
        """Means per step.

        Args:
            method: its name.
            shape: of the part of the model that is on this device.
        """
        # Step by step: work is no linear function of the width.
        needed = [work(shape, width, context) for width, context in self.loads]
        return TimeSpent(
            contender=method,
            steps=len(self.loads),
            seconds={part: total / len(self.loads) for part, total in self.seconds.items()},
            width=fmean(width for width, _ in self.loads),
            context=fmean(context for _, context in self.loads),
            read_bytes=fmean(each.read_bytes for each in needed),
            operations=fmean(each.operations for each in needed),
        )


@dataclass(slots=True)
class Measured:
    """What came out.

    Attributes:
        runs, failures: in the order of time.
        skipped: turns that the context had no room for, by row.
        spent: where time goes, by method; our own alone.
        interrupted: whether Ctrl-C ended it.
        seconds: from the first round to the last.
        busy: of them, those in which prompts were answered.
    """

    runs: list[Run] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    skipped: dict[str, Skipped] = field(default_factory=dict)
    spent: dict[str, Spent] = field(default_factory=lambda: defaultdict(Spent))
    interrupted: bool = False
    seconds: float = 0.0
    busy: float = 0.0

    @property
    def overhead(self) -> float:
        """Share of the time in which nothing was answered."""
        return 1.0 - self.busy / self.seconds if self.seconds else 0.0


class Measurement:
    """Lets runners take turns on tasks.

    Args:
        runners: methods at work.
        device: whose memory is watched.
        cancelled: asked after every step; true ends the measurement.
        progress: called with the number of runs that were done since the last call.
    """

    def __init__(
        self,
        runners: Sequence[Runner],
        device: Device,
        cancelled: Callable[[], bool],
        progress: Callable[[int], None] = lambda _runs: None,
    ) -> None:
        self._runners = list(runners)
        self._device = device
        self._cancelled = cancelled
        self._progress = progress
        self._failed: dict[str, set[str]] = defaultdict(set)
        self._in_succession: Counter[str] = Counter()
        self._measured = Measured()
        self._began = 0.0

    def run(self, tasks: Sequence[Task], repeats: int) -> Measured:
        """Measure every task `repeats` times; after Ctrl-C, what is done is the result."""
        # What is alive now stays: the garbage collector need not look at it again.
        gc.collect()
        gc.freeze()
        try:
            self._warm_up(tasks[0].first()[:PROMPT])
            self._began = time.perf_counter()
            for repeat in range(1, repeats + 1):
                for task in tasks:
                    self._round(task, repeat)
        except Stopped:
            self._measured.interrupted = True
        finally:
            gc.unfreeze()
        return self._measured

    def _warm_up(self, prompt: list[int]) -> None:
        """Let every method make a few steps, which are not timed."""
        for runner in self._runners:
            runner.begin()
            steps = count(1)

            def enough(steps: count[int] = steps) -> bool:
                return next(steps) >= WARM_UP or self._cancelled()

            # A method that cannot run fails again where it counts.
            with contextlib.suppress(Exception):
                runner.answer(prompt, enough)
            if self._cancelled():
                raise Stopped

    def _round(self, task: Task, repeat: int) -> None:
        """One task for all methods, in an order of its own."""
        order = [runner for runner in self._runners if self._may_run(runner, task)]
        # The same order in every benchmark, and another one in every round.
        random.Random(f"{repeat} {task.id}").shuffle(order)
        self._progress(len(self._runners) - len(order))
        try:
            for place, runner in enumerate(order, start=1):
                name = runner.method.name
                try:
                    self._hold(runner, task, repeat, place)
                    self._in_succession[name] = 0
                except Stopped:
                    raise
                except Exception as error:  # must not cost the figures of the others
                    self._measured.failures.append(Failure(name, task.id, told(error)))
                    self._failed[name].add(task.id)
                    self._in_succession[name] += 1
                self._progress(1)
        finally:
            if task.cut:
                self._measured.skipped[task.id] = Skipped(task.id, task.cut)
            self._measured.seconds = time.perf_counter() - self._began

    def _may_run(self, runner: Runner, task: Task) -> bool:
        name = runner.method.name
        return self._in_succession[name] < MAX_FAILURES and task.id not in self._failed[name]

    def _hold(self, runner: Runner, task: Task, repeat: int, place: int) -> None:
        """Let one method do one task; the turns before one that fails count."""
        done: list[tuple[Run, Answer]] = []

        def answer(turn: int, prompt: list[int]) -> str:
            gc.collect()
            watch_peak(self._device)
            start = time.perf_counter()
            answered = runner.answer(prompt, self._cancelled)
            self._measured.busy += time.perf_counter() - start
            if answered.reason == "interrupted":
                raise Stopped
            run = Run(
                contender=runner.method.name,
                row=task.id,
                category=task.category,
                turn=turn,
                repeat=repeat,
                place=place,
                began=round(start - self._began, 3),
                prompt_tokens=len(prompt),
                prompt_digest=digest(prompt),
                tokens=len(answered.ids),
                first_tokens=answered.lengths[0],
                steps=len(answered.marks),
                fed=sum(answered.widths[1:]) if answered.widths else None,
                first_seconds=round(answered.marks[0], 6),
                step_seconds=answered.step_seconds,
                accepted=dict(sorted(answered.accepted.items())),
                peak_memory=peak_memory(self._device),
                reason=answered.reason,
                digest=digest(answered.ids),
            )
            done.append((run, answered))
            return answered.text

        try:
            for _ in range(TRIES):
                built = runner.built
                done.clear()
                runner.begin()
                task.hold(answer)
                if runner.built == built:
                    return
            if runner.method.foreign:
                done.clear()
                raise LadeError("torch compiles something anew in every answer of transformers")
        finally:
            for run, answered in done:
                self._measured.runs.append(run)
                if len(answered.widths) > 1:
                    self._measured.spent[run.contender].add(answered, run.prompt_tokens)


def digest(ids: Sequence[int]) -> str:
    """A short hash of token ids."""
    return hashlib.sha256(",".join(map(str, ids)).encode()).hexdigest()[:16]
