"""Which settings decode fastest here: candidates take turns on the same prompts."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ..decoder.config import SOURCES, LookaheadConfig, SamplingConfig
from ..decoder.engine import Limits
from ..decoder.errors import ConfigError
from ..decoder.events import Step
from ..decoder.step_cost import StepCost
from ..decoder.strategies import make_strategy
from ..profiles.derive import fitted

if TYPE_CHECKING:
    from ..decoder.engine import Decoder

PLAIN, CURRENT = "plain decoding", "the current profile"
"""Names of the two candidates that all others are compared with."""
WINDOWS = ((5, 3, 5), (10, 3, 10), (7, 5, 7), (15, 5, 15))
"""W, N and G; next to other sources G changes nothing."""
BUDGETS = (8, 16, 24, 32, 64, 128)
MAX_COST = 4.0
"""Budgets whose step costs more plain steps than that are not tried."""
MIN_NEW, MAX_NEW = 16, 96
"""Tokens of an answer."""
MIN_ANSWER = 8
"""Prompts that are answered in fewer tokens are left out."""
ROUNDS = (0.3, 0.15)
"""Shares of the time for the rounds before the last; half of the candidates leave after each."""
FINALISTS, REPEATS = 3, 2
MIN_PROMPTS, MANY_PROMPTS = 3, 6
"""Of the last round: as many at least, and as many as answers are shortened for."""
DISTURBED = 5.0
"""No step counts for more than this many of its setting's median step."""
AGREE = 0.05
"""Repeats that differ by more than this do not agree."""
CHANCE = 1 / 60
"""P-value below which a challenger replaces the current profile; 5 % with three challengers."""


@dataclass(slots=True)
class Candidate:
    """A setting (None: plain decoding), its tokens per second and its answer by prompt."""

    name: str
    config: LookaheadConfig | None
    speeds: dict[int, list[float]] = field(default_factory=dict)
    ids: dict[int, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Score:
    """Speed over plain decoding on the same prompts: geometric mean, over all and by repeat."""

    candidate: Candidate
    speed: float
    repeats: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a search found.

    Attributes:
        best: the setting to use.
        scores: those of the last round, the fastest first.
        prompts: number of prompts in the last round.
        differing: prompts with an answer other than plain decoding's.
    """

    best: Score
    scores: tuple[Score, ...]
    prompts: int
    differing: int

    @property
    def disagreement(self) -> float:
        """Relative difference between the best setting's repeats."""
        return max(self.best.repeats) / min(self.best.repeats) - 1.0

    @property
    def agrees(self) -> bool | None:
        """Whether the repeats agree; None if there was time for one only."""
        return None if len(self.best.repeats) < 2 else self.disagreement <= AGREE


def candidates(cost: StepCost, current: LookaheadConfig, on_cpu: bool) -> list[Candidate]:
    """What to try: plain decoding, the current setting, and what the measured costs suggest.

    Args:
        cost: measured here.
        current: the setting so far.
        on_cpu: there, a product of a few rows takes as long as with a multiple of 4 of them.
    """
    found = [Candidate(PLAIN, None), Candidate(CURRENT, current)]
    repriced = replace(current, step_cost=cost)
    if repriced != current:
        found.append(Candidate(f"{CURRENT}, costs as measured", repriced))
    context, base = cost.contexts[0], fitted(cost)
    usable = [b for b in BUDGETS if b <= cost.widths[-1] and cost.at(b, context) <= MAX_COST]
    for budget in sorted(usable or BUDGETS[:1], key=lambda b: abs(math.log(b / base.step_limit))):
        grid = (1, *range(4, budget + 1, 4)) if on_cpu else ()
        for sources in (("context", "recycled"), ("context",)):
            config = LookaheadConfig(*WINDOWS[0], budget, sources, cost, grid)
            found.append(Candidate(f"budget {budget}, no window, {'+'.join(sources)}", config))
        for window in WINDOWS:
            try:
                config = LookaheadConfig(*window, budget, SOURCES, cost, grid)
            except ConfigError:
                continue  # the budget has no room for the window
            if config.window_cells * 2 <= budget:  # else there is no room for candidates
                name = f"budget {budget}, W={window[0]} N={window[1]}, {'+'.join(SOURCES)}"
                found.append(Candidate(name, config))
    return found


def min_seconds(plain_step: float) -> float:
    """Seconds in which one challenger can be compared; plain_step: seconds of a plain step."""
    # Three candidates run, and reading the prompts takes about as long as a fourth.
    return 4 * MIN_PROMPTS * MIN_NEW * plain_step


def search(
    decoder: Decoder,
    prompts: Sequence[Sequence[int]],
    field: Sequence[Candidate],
    seconds: float,
    plain_step: float,
    *,
    stop_ids: frozenset[int] = frozenset(),
    progress: Callable[[], None] = lambda: None,
) -> Outcome | None:
    """Drop the slower half of the candidates after each round (successive halving, Karnin 2013).

    Plain decoding and the current setting stay to the end, to be compared on the same prompts.

    Args:
        decoder: the model.
        prompts: token ids.
        field: from `candidates`: those two, then the others, the most promising first.
        seconds: how long it may take.
        plain_step: seconds of a plain step.
        stop_ids: where answers end.
        progress: called now and then.

    Returns:
        None if there is too little time to compare anything.
    """
    if seconds < min_seconds(plain_step):
        return None

    def new_tokens(per_answer: float) -> int:
        return min(max(int(per_answer / plain_step), MIN_NEW), MAX_NEW)

    began = time.perf_counter()
    anchors, others = list(field[:2]), list(field[2:])
    race = _Race(decoder, prompts, stop_ids, progress)
    affordable = int(ROUNDS[0] * seconds / (MIN_NEW * plain_step)) - len(anchors)
    if affordable <= FINALISTS:
        others = others[:FINALISTS]  # no time to find out which are worth a try
    else:
        others, end = others[:affordable], began
        for share in ROUNDS:
            end += share * seconds
            race.new = new_tokens(share * seconds / (2 * (len(others) + 2)))
            race.run([*anchors, *others], end)
            others = [other for other in others if other.speeds]  # the rest is too wide for memory
            others.sort(key=lambda other: -score(other, anchors[0]).speed)
            others = others[: max(len(others) // 2, FINALISTS)]
            for each in (*anchors, *others):
                each.speeds, each.ids = {}, {}  # the next answers have another length
    left = max(began + seconds - time.perf_counter(), 0.0)
    most = int(left / (MIN_PROMPTS * REPEATS * MIN_NEW * plain_step)) - len(anchors)
    finalists = [*anchors, *others[: min(max(most, 1), FINALISTS)]]
    race.new = new_tokens(left / (REPEATS * MANY_PROMPTS * len(finalists)))
    count = race.run_repeatedly(finalists, began + seconds)
    if count == 0 or len(finalists) < 2 or finalists[0] is not anchors[0]:
        return None
    scores = tuple(sorted((score(c, anchors[0]) for c in finalists), key=lambda s: -s.speed))
    differing = sum(
        any(other.ids[number] != ids for other in finalists)
        for number, ids in anchors[0].ids.items()
    )
    return Outcome(best_of(scores), scores, count, differing)


class _Race:
    """Decodes prompts with candidates in turn; `new` is the number of tokens of an answer."""

    def __init__(
        self,
        decoder: Decoder,
        prompts: Sequence[Sequence[int]],
        stop_ids: frozenset[int],
        progress: Callable[[], None],
    ) -> None:
        self._decoder, self._prompts = decoder, prompts
        self._stop_ids, self._progress = stop_ids, progress
        self._turns = 0
        self.new = MIN_NEW

    def run(self, runners: list[Candidate], end: float) -> None:
        """One prompt after the other, until the time is over."""
        for number in range(len(self._prompts)):
            if self._turn(runners, number) and time.perf_counter() > end:
                break

    def run_repeatedly(self, runners: list[Candidate], end: float) -> int:
        """As many prompts as can be repeated in time, then all of them again; returns how many."""
        began = time.perf_counter()
        done: list[int] = []
        for number in range(len(self._prompts)):
            if not self._turn(runners, number):
                continue
            done.append(number)
            again = time.perf_counter() - began
            each = again / len(done)
            # A few prompts come before any repeat; the next may have a longer answer than most.
            needed = each if len(done) < MIN_PROMPTS else again + 3.0 * each
            if began + again + needed > end:
                break
        once = time.perf_counter() - began
        # A later repeat sees another state of the machine: repeats that agree mean something.
        while done and time.perf_counter() + 0.9 * once < end:
            for number in done:
                self._turn(runners, number)
        return len(done)

    def _turn(self, runners: list[Candidate], number: int) -> bool:
        """Every runner on one prompt, in turn the first; false if its answer is too short.

        A runner whose steps do not fit in memory is removed.
        """
        # The prompt is read before, or the first runner would pay for all.
        if len(self._decode(None, self._prompts[number], MIN_ANSWER)[1]) < MIN_ANSWER:
            return False
        first = self._turns % len(runners)
        self._turns += 1
        for runner in (*runners[first:], *runners[:first]):
            self._progress()
            speed, ids = self._decode(runner.config, self._prompts[number], self.new)
            if ids:
                runner.speeds.setdefault(number, []).append(speed)
                runner.ids[number] = ids
            else:
                runner.speeds = {}
                runners.remove(runner)
        return True

    def _decode(
        self, config: LookaheadConfig | None, prompt: Sequence[int], new: int
    ) -> tuple[float, tuple[int, ...]]:
        """Tokens per second of an answer after the prompt, and its tokens; none: no memory."""
        name = "autoregressive" if config is None else "lookahead"
        strategy = make_strategy(name, config or LookaheadConfig())
        limits = Limits(new, self._stop_ids)
        events = self._decoder.generate(prompt, strategy, SamplingConfig(), limits)
        steps = [event for event in events if isinstance(event, Step)]
        if not steps:
            return 0.0, ()
        seconds = [step.seconds for step in steps]
        # Widths make steps differ, but not by this much: something else ran on this machine.
        most = DISTURBED * statistics.median(seconds)
        ids = tuple(token.id for step in steps for token in step.tokens)
        return len(ids) / sum(min(s, most) for s in seconds), ids


def score(candidate: Candidate, plain: Candidate) -> Score:
    """A candidate's speed over plain decoding's: of a prompt's repeats, the median counts."""
    repeats = min(len(speeds) for speeds in candidate.speeds.values())
    by_prompt = [
        [math.log(a / b) for a, b in zip(speeds[:repeats], plain.speeds[number], strict=False)]
        for number, speeds in candidate.speeds.items()
    ]
    speed = math.exp(statistics.fmean(statistics.median(logs) for logs in by_prompt))
    means = (math.exp(statistics.fmean(logs)) for logs in zip(*by_prompt, strict=True))
    return Score(candidate, speed, tuple(means))


def best_of(scores: Sequence[Score]) -> Score:
    """The fastest (the first), or the current setting where other prompts might say otherwise."""
    from scipy.stats import ttest_1samp

    fastest = scores[0]
    current = next((s for s in scores if s.candidate.name == CURRENT), None)
    if current is None or fastest is current:
        return fastest  # memory did not suffice for the current setting
    other = current.candidate.speeds
    gains = [
        math.log(statistics.median(speeds) / statistics.median(other[number]))
        for number, speeds in fastest.candidate.speeds.items()
    ]
    if len(gains) < MIN_PROMPTS:
        return current
    if max(gains) - min(gains) < 1e-9:  # no variance to test against
        return fastest if gains[0] > 0 else current
    return fastest if ttest_1samp(gains, 0.0, alternative="greater").pvalue < CHANCE else current


def setting_of(best: Score | None, current: LookaheadConfig, cost: StepCost) -> LookaheadConfig:
    """The setting to write, at the measured cost of steps.

    Where plain decoding was fastest, it is lookahead without room for any draft; where nothing
    was compared (None), the current setting.
    """
    if best is None:
        return replace(current, step_cost=cost)
    if best.candidate.config is None:
        return LookaheadConfig(budget=1, sources=("context",), step_cost=cost, widths=(1,))
    return best.candidate.config
