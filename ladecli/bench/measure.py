"""Methods on the same prompts, in turn, so that noise of the machine affects all equally."""

from __future__ import annotations

import contextlib
import gc
import hashlib
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import count, product

from ..errors import LadeError, describe_error
from ..models.device import Device, peak_memory, watch_peak
from ..session.text import TextDelta
from .result import Failure, Run, SkippedRow, TimeSpent
from .runners import Answer, MethodRunner, RunInterrupted
from .tasks import BenchTask

WARM_UPS, WARM_UP = 3, 16
"""Texts that every method begins before anything is timed, and the steps of each."""
PROMPT = 256
"""Tokens of a prompt to warm up with."""
TRIES = 4
"""Times that a conversation is held, at most, until no step is compiled or captured in it."""


class Measurement:
    """Lets methods take turns on tasks.

    `cancelled` is called after every step, and true ends the measurement; `progress` is called with
    the number of runs that were done since the last call.
    """

    def __init__(
        self,
        runners: Sequence[MethodRunner],
        device: Device,
        cancelled: Callable[[], bool],
        progress: Callable[[int], None] = lambda _runs: None,
    ) -> None:
        self.runs: list[Run] = []  # in the order of time, as are `failures`
        self.failures: list[Failure] = []
        self.skipped: dict[str, SkippedRow] = {}  # turns that the context had no room for, by row
        self.interrupted = False  # by Ctrl-C
        self.seconds = 0.0  # without the warm-up
        self._runners = list(runners)
        self._device = device
        self._cancelled = cancelled
        self._progress = progress
        # By method and part of a step, the seconds of all steps after the first.
        self._parts: dict[str, Counter[str]] = {runner.method.name: Counter() for runner in runners}

    def run(self, tasks: Sequence[BenchTask], repeats: int) -> None:
        """Measure every task `repeats` times; what is done when Ctrl-C comes counts."""
        # What is alive now stays: the garbage collector need not look at it again.
        gc.collect()
        gc.freeze()
        began = time.perf_counter()
        try:
            self._warm_up(tasks[0].first()[:PROMPT])
            began = time.perf_counter()
            order = random.Random(0)  # the same in every benchmark
            for repeat, task in product(range(1, repeats + 1), tasks):
                self._round(task, repeat, order.sample(self._runners, len(self._runners)))
        except (RunInterrupted, KeyboardInterrupt):
            self.interrupted = True
        finally:
            self.seconds = time.perf_counter() - began
            gc.unfreeze()

    def time_spent(self) -> tuple[TimeSpent, ...]:
        """Return the time of a step by its parts, for every method that tells them."""
        spent = []
        for name, parts in self._parts.items():
            steps = sum(len(run.step_seconds) for run in self.runs if run.contender == name)
            if parts and steps:
                seconds = {part: total / steps for part, total in parts.items()}
                spent.append(TimeSpent(name, steps, seconds))
        return tuple(spent)

    def _warm_up(self, prompt: list[int]) -> None:
        """Let every method make a few steps, which are not timed.

        The first text of compiled steps compiles them, and on a GPU the next ones capture them.
        """
        for runner in [one for one in self._runners for _ in range(WARM_UPS)]:
            runner.begin()
            steps = count(1)

            def enough(steps: count[int] = steps) -> bool:
                return next(steps) >= WARM_UP or self._cancelled()

            # A method that cannot run fails again where it counts.
            with contextlib.suppress(Exception):
                runner.answer(prompt, enough)
            if self._cancelled():
                raise RunInterrupted

    def _round(self, task: BenchTask, repeat: int, order: Sequence[MethodRunner]) -> None:
        """Let all methods do one task, in an order."""
        for runner in order:
            name = runner.method.name
            if not any((one.contender, one.row) == (name, task.id) for one in self.failures):
                try:
                    self._hold(runner, task, repeat)
                except RunInterrupted:
                    raise
                except Exception as error:  # must not cost the figures of the others
                    self.failures.append(Failure(name, task.id, describe_error(error)))
            self._progress(1)
        if task.cut:
            self.skipped[task.id] = SkippedRow(task.id, task.cut)

    def _hold(self, runner: MethodRunner, task: BenchTask, repeat: int) -> None:
        """Let one method do one task; the turns before one that fails count."""
        done: list[tuple[Run, Answer]] = []

        def answer(turn: int, prompt: list[int]) -> TextDelta:
            gc.collect()
            watch_peak(self._device)
            answered = runner.answer(prompt, self._cancelled).whole()
            run = Run(
                contender=runner.method.name,
                row=task.id,
                category=task.category,
                turn=turn,
                repeat=repeat,
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
            return answered.said

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
                self.runs.append(run)
                self._parts[run.contender].update(answered.parts)


def digest(ids: Sequence[int]) -> str:
    """Return a short hash of token ids."""
    return hashlib.sha256(",".join(map(str, ids)).encode()).hexdigest()[:16]
