"""Measure methods on the same prompts alternately, so that machine noise affects all equally."""

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
"""The number of untimed texts of every method before the measurement, and the steps of each."""
PROMPT = 256
"""The number of tokens of a warm-up prompt."""
TRIES = 4
"""The most attempts at a conversation without compiling or capturing a step."""


class Measurement:
    """Runs methods alternately on tasks.

    `cancelled` is called after every step, and True ends the measurement; `progress` is called with
    the number of completed runs since the last call.
    """

    def __init__(
        self,
        runners: Sequence[MethodRunner],
        device: Device,
        cancelled: Callable[[], bool],
        progress: Callable[[int], None] = lambda _runs: None,
    ) -> None:
        self.runs: list[Run] = []  # like `failures`, in the order of time
        self.failures: list[Failure] = []
        self.skipped: dict[str, SkippedRow] = {}  # by row; the context had no room for some turns
        self.interrupted = False  # by Ctrl-C
        self.seconds = 0.0  # without the warm-up
        self._runners = list(runners)
        self._device = device
        self._cancelled = cancelled
        self._progress = progress
        # By method and part of a step, the seconds of all steps after the first.
        self._parts: dict[str, Counter[str]] = {runner.method.name: Counter() for runner in runners}

    def run(self, tasks: Sequence[BenchTask], repeats: int) -> None:
        """Measure every task `repeats` times; after Ctrl-C, completed runs count."""
        # Present objects stay alive, so the garbage collector need not scan them again.
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
        """Return the time of a step by its parts, for every method that records them."""
        spent = []
        for name, parts in self._parts.items():
            steps = sum(len(run.step_seconds) for run in self.runs if run.contender == name)
            if parts and steps:
                seconds = {part: total / steps for part, total in parts.items()}
                spent.append(TimeSpent(name, steps, seconds))
        return tuple(spent)

    def _warm_up(self, prompt: list[int]) -> None:
        """Let every method run a few untimed steps.

        The first text of compiled steps compiles them, and on a GPU the next ones capture them.
        """
        for runner in [runner for runner in self._runners for _ in range(WARM_UPS)]:
            runner.begin()
            steps = count(1)

            def enough(steps: count[int] = steps) -> bool:
                return next(steps) >= WARM_UP or self._cancelled()

            # A method that cannot run fails again in the measurement.
            with contextlib.suppress(Exception):
                runner.answer(prompt, enough)
            if self._cancelled():
                raise RunInterrupted

    def _round(self, task: BenchTask, repeat: int, order: Sequence[MethodRunner]) -> None:
        """Run one task with all methods, in the order of the runners."""
        for runner in order:
            name = runner.method.name
            if not any((f.contender, f.row) == (name, task.id) for f in self.failures):
                try:
                    self._hold(runner, task, repeat)
                except RunInterrupted:
                    raise
                except Exception as error:  # other methods go on
                    self.failures.append(Failure(name, task.id, describe_error(error)))
            self._progress(1)
        if task.cut:
            self.skipped[task.id] = SkippedRow(task.id, task.cut)

    def _hold(self, runner: MethodRunner, task: BenchTask, repeat: int) -> None:
        """Run one task with one method; turns before a failed one count."""
        done: list[tuple[Run, Answer]] = []

        def answer(turn: int, prompt: list[int]) -> TextDelta:
            gc.collect()
            watch_peak(self._device)
            result = runner.answer(prompt, self._cancelled).whole()
            run = Run(
                contender=runner.method.name,
                row=task.id,
                category=task.category,
                turn=turn,
                repeat=repeat,
                prompt_tokens=len(prompt),
                prompt_digest=digest(prompt),
                tokens=len(result.ids),
                first_tokens=result.lengths[0],
                steps=len(result.marks),
                fed=sum(result.widths[1:]) if result.widths else None,
                first_seconds=round(result.marks[0], 6),
                step_seconds=result.step_seconds,
                accepted=dict(sorted(result.accepted.items())),
                peak_memory=peak_memory(self._device),
                reason=result.reason,
                digest=digest(result.ids),
            )
            done.append((run, result))
            return result.delta

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
            for run, result in done:
                self.runs.append(run)
                self._parts[run.contender].update(result.parts)


def digest(ids: Sequence[int]) -> str:
    """Return a short hash of token ids."""
    return hashlib.sha256(",".join(map(str, ids)).encode()).hexdigest()[:16]
