"""Contenders on the same prompts, in turn: whatever disturbs the machine disturbs all alike."""

from __future__ import annotations

import contextlib
import gc
import hashlib
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ..device import Device, peak_memory, watch_peak
from ..errors import told
from .contenders import TRIES, Player
from .journal import Journal, Round
from .result import Failure, Run, Skipped

WARM_UP = 16
"""Steps that every contender makes beforehand, for nothing."""
PROMPT = 256
"""Tokens of a prompt that contenders read to warm up."""
STRIKES = 2
"""So many rows on end on which a contender fails, and it is out."""


class Task(Protocol):
    """What every contender is to do: one conversation."""

    @property
    def id(self) -> str:
        """Of the row."""

    @property
    def category(self) -> str:
        """Of the row."""

    @property
    def shared(self) -> bool:
        """Whether contenders find the prompt read already."""

    @property
    def identity(self) -> object:
        """What is asked; anything that JSON takes."""

    @property
    def cut(self) -> str | None:
        """Why it ended before one of its turns, if it did."""

    @property
    def room(self) -> int:
        """As many tokens as its longest prompt and the answer will have, or a few more."""

    def first(self) -> list[int]:
        """The ids of the first prompt.

        Raises:
            UsageError, PromptError: it cannot be answered.
        """

    def hold(self, answer: Callable[[int, list[int]], str]) -> None:
        """Hold the conversation; `answer` is asked with the number and the ids of every turn."""


class Stopped(Exception):
    """Ctrl-C, in the middle of an answer."""


@dataclass(slots=True)
class Measured:
    """What came out.

    Attributes:
        runs: in the order of time.
        failures: likewise.
        skipped: turns that could not be had, by row.
        interrupted: whether there would have been more.
        before: seconds of the measurement that this one goes on with.
        seconds: from the first run to the last, of this one.
        busy: of them, those in which prompts were read and answered.
    """

    runs: list[Run] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    skipped: dict[str, Skipped] = field(default_factory=dict)
    interrupted: bool = False
    before: float = 0.0
    seconds: float = 0.0
    busy: float = 0.0

    @property
    def overhead(self) -> float:
        """Share of the time in which nothing was read or answered: what measuring takes."""
        return 1.0 - self.busy / self.seconds if self.seconds else 0.0


@dataclass(frozen=True, slots=True)
class _Reading:
    """What reading a prompt took that contenders share."""

    seconds: float = 0.0
    peak: int | None = None


class Measurement:
    """Lets players take turns on tasks.

    Args:
        players: contenders at work.
        device: whose memory is watched.
        cancelled: asked after every step; true ends the measurement.
        read: reads a prompt for all that share it.
        progress: called with how many more runs are done.
    """

    def __init__(
        self,
        players: Sequence[Player],
        device: Device,
        cancelled: Callable[[], bool],
        read: Callable[[list[int]], None],
        progress: Callable[[int], None] = lambda _runs: None,
    ) -> None:
        self._players = list(players)
        self._device = device
        self._cancelled = cancelled
        self._read = read
        self._progress = progress
        names = [player.contender.name for player in players]
        self._failed: dict[str, set[str]] = {name: set() for name in names}
        self._strikes = dict.fromkeys(names, 0)
        self._measured = Measured()
        self._began = 0.0

    def run(
        self, tasks: Sequence[Task], repeats: int, journal: Journal, done: Sequence[Round] = ()
    ) -> Measured:
        """Measure every task so many times; Ctrl-C ends it, and what is done is kept.

        Args:
            tasks: what to do.
            repeats: how many times.
            journal: where finished rounds are kept.
            done: rounds of an earlier, unfinished measurement.
        """
        measured = self._measured
        for each in done:
            self._count(each)
            self._progress(len(self._players))
        ends = (run.began + run.first_seconds + run.decode_seconds for run in measured.runs)
        measured.before = max(ends, default=0.0)
        finished = {(each.repeat, each.row) for each in done}
        left = [
            (repeat, task)
            for repeat in range(1, repeats + 1)
            for task in tasks
            if (repeat, task.id) not in finished
        ]
        # What is alive now stays: it need not be looked at again for garbage.
        gc.collect()
        gc.freeze()
        try:
            self._rounds(left, journal)
        except Stopped:
            measured.interrupted = True
        finally:
            gc.unfreeze()
        return measured

    def _rounds(self, left: Sequence[tuple[int, Task]], journal: Journal) -> None:
        if left:
            self._warm_up(left[0][1].first()[:PROMPT])
        started = time.perf_counter()
        self._began = started - self._measured.before
        for repeat, task in left:
            runs, failures = list[Run](), list[Failure]()
            whole = False
            try:
                self._round(task, repeat, runs, failures)
                whole = True
            finally:
                # Of a round that was broken off, the runs are shown, and not kept to go on with.
                skipped = (Skipped(task.id, task.cut),) if task.cut else ()
                each = Round(repeat, task.id, tuple(runs), tuple(failures), skipped)
                self._count(each)
                self._measured.seconds = time.perf_counter() - started
                if whole:
                    journal.add(each)

    def _round(self, task: Task, repeat: int, runs: list[Run], failures: list[Failure]) -> None:
        """One task for all, in an order of its own."""
        order = [player for player in self._players if self._may(player, task)]
        # The same order in every run of the program, and another one for every round.
        random.Random(f"{repeat} {task.id}").shuffle(order)
        self._progress(len(self._players) - len(order))
        reading: _Reading | None = None
        for place, player in enumerate(order, start=1):
            try:
                if task.shared:
                    reading = self._reading(player, task, reading)
                self._hold(player, task, (repeat, place), reading or _Reading(), runs)
            except Stopped:
                raise
            except Exception as error:  # one contender's fault must not cost the others' figures
                failures.append(Failure(player.contender.name, task.id, told(error)))
            self._progress(1)

    def _may(self, player: Player, task: Task) -> bool:
        """Whether a contender is not out, and has not failed on this row before."""
        name = player.contender.name
        return self._strikes[name] < STRIKES and task.id not in self._failed[name]

    def _reading(self, player: Player, task: Task, before: _Reading | None) -> _Reading:
        """Read the prompt of a task that contenders share, where it is not there any more."""
        if before is None:
            player.begin(keep=False)
            watch_peak(self._device)
        start = time.perf_counter()
        self._read(task.first())
        seconds = time.perf_counter() - start
        self._measured.busy += seconds
        return before or _Reading(seconds, peak_memory(self._device))

    def _hold(
        self,
        player: Player,
        task: Task,
        when: tuple[int, int],
        reading: _Reading,
        runs: list[Run],
    ) -> None:
        """Let one contender do one task; turns before one that fails count.

        What a step takes to be captured belongs to none of the answers: who captured one does the
        task again.
        """
        repeat, place = when

        def answer(turn: int, prompt: list[int]) -> str:
            gc.collect()
            watch_peak(self._device)
            start = time.perf_counter()
            answered = player.answer(prompt, self._cancelled)
            self._measured.busy += time.perf_counter() - start
            if answered.reason == "interrupted":
                raise Stopped
            peak = peak_memory(self._device)
            runs.append(
                Run(
                    contender=player.contender.name,
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
                    fed=answered.fed,
                    first_seconds=round(max(answered.marks[0], reading.seconds), 6),
                    step_seconds=answered.step_seconds,
                    accepted=dict(sorted(answered.accepted.items())),
                    peak_memory=None if peak is None else max(peak, reading.peak or 0),
                    reason=answered.reason,
                    digest=digest(answered.ids),
                )
            )
            return answered.text

        first = len(runs)
        for left in reversed(range(TRIES)):
            captured = player.captured
            player.begin(keep=task.shared)
            task.hold(answer)
            if player.captured == captured or not left:
                break
            del runs[first:]

    def _warm_up(self, prompt: list[int]) -> None:
        """Wake what sleeps: a few tokens of every contender."""
        for player in self._players:
            player.begin(keep=False)
            # Who cannot will say so when it counts.
            with contextlib.suppress(Exception):
                player.answer(prompt, _Few(self._cancelled))
            if self._cancelled():
                raise Stopped

    def _count(self, finished: Round) -> None:
        """Take a round in."""
        for name in {run.contender for run in finished.runs}:
            self._strikes[name] = 0
        for failure in finished.failures:
            self._strikes[failure.contender] += 1
            self._failed[failure.contender].add(finished.row)
        self._measured.runs += finished.runs
        self._measured.failures += finished.failures
        self._measured.skipped.update({each.row: each for each in finished.skipped})


def digest(ids: Sequence[int]) -> str:
    """A short name of some tokens: equal where they are."""
    return hashlib.sha256(",".join(map(str, ids)).encode()).hexdigest()[:16]


class _Few:
    """Ends an answer after a few steps."""

    def __init__(self, cancelled: Callable[[], bool]) -> None:
        self._cancelled = cancelled
        self._left = WARM_UP

    def __call__(self) -> bool:
        self._left -= 1
        return self._left <= 0 or self._cancelled()
