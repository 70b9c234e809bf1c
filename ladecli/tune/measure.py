"""What steps cost here, and which settings decode fastest: the measurements of `lade tune`."""

from __future__ import annotations

import math
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, islice
from typing import TYPE_CHECKING

from ..decoder.config import SOURCES, LookaheadConfig, SamplingConfig
from ..decoder.drafting.memory import DraftMemory
from ..decoder.engine import Limits
from ..decoder.errors import ConfigError
from ..decoder.events import Step
from ..decoder.step_cost import StepCost
from ..decoder.strategies import make_strategy
from ..profiles.derive import fitted

if TYPE_CHECKING:
    from ..decoder.engine import Decoder

WIDTHS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128)
CONTEXTS = (128, 1024, 4096, 16384)
VISIT = 4
"""Steps of one width in a row; the first one, which finds the caches of another, does not count."""
SLOW, SLOW_WIDTHS = 0.05, (1, 2, 8, 32)
"""Seconds of a plain step from which on each width gets one step in turn, and only these do."""
ROOM = 128
"""Tokens that a visit may add to its text."""

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
"""Of the last round: at least 3, and 6 before answers become longer than they must be."""
DISTURBED = 5.0
"""No step counts for more than this many of its setting's median step."""
AGREE = 0.05
"""Repeats that differ by more than this do not agree."""
CHANCE = 1 / 60
"""P-value below which a challenger replaces the current profile; 5 % with three challengers."""


@dataclass(frozen=True, slots=True)
class Curve:
    """Measured costs of steps, seconds of a plain step for each context, and the steps in all."""

    cost: StepCost
    plain: tuple[float, ...]
    steps: int


@dataclass(slots=True)
class Candidate:
    """A setting (None: plain decoding), and its tokens per second by prompt."""

    name: str
    config: LookaheadConfig | None
    speeds: dict[int, list[float]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Score:
    """Speed over plain decoding on the same prompts: geometric mean, over all and by repeat."""

    candidate: Candidate
    speed: float
    repeats: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a search found: the setting to use, the last round's scores, and its prompts."""

    best: Score
    scores: tuple[Score, ...]
    prompts: int

    @property
    def disagreement(self) -> float:
        """Relative difference between the best setting's repeats."""
        return max(self.best.repeats) / min(self.best.repeats) - 1.0

    @property
    def agrees(self) -> bool | None:
        """Whether the repeats agree; None if there was time for one only."""
        return None if len(self.best.repeats) < 2 else self.disagreement <= AGREE


class Tuner:
    """Measures a decoder.

    Args:
        decoder: the model.
        stop_ids: where answers end.
        clock: seconds; it is looked at now and then, and may move a progress bar on.
    """

    def __init__(
        self,
        decoder: Decoder,
        stop_ids: frozenset[int] = frozenset(),
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._decoder, self._stop_ids, self._now = decoder, stop_ids, clock
        self._drafts: dict[int, DraftMemory] = defaultdict(DraftMemory)
        self._turns = 0

    def measure_curve(self, text: Sequence[int], seconds: float) -> Curve:
        """Measure steps of real generations, all widths taking turns.

        Contexts that the model cannot hold, or that would take too long, are left out.

        Args:
            text: token ids to continue; it is repeated as often as a context needs.
            seconds: how long this may take, the first round of a slow model as long again.

        Returns:
            Medians, raised where noise made a wider step seem cheaper than a narrower one.
        """
        limit = self._now() + seconds
        contexts = [c for c in CONTEXTS if c <= self._decoder.max_context - ROOM]
        contexts = contexts or [min(CONTEXTS[0], self._decoder.max_context // 3)]
        texts = {c: (list(text) * (c // len(text) + 1))[:c] for c in contexts}
        widths, visit = self._affordable(texts[contexts[0]])
        # The first round is whole, but for a slow model, which would take too long.
        latest = limit + seconds if visit == 1 else math.inf
        times: dict[int, dict[int, list[float]]] = {}
        for context in contexts:
            now, end = self._now(), limit
            if times:
                seen = times[contexts[0]]
                reading = context * statistics.median(seen[widths[-1]]) / widths[-1]
                if reading > (limit - now) / 2:
                    break
                end = now + (limit - now) / (len(contexts) - len(times))
            elif len(contexts) > 1:
                end = (now + limit) / 2  # most texts are short
            times[context] = self._take_turns(texts[context], widths, visit, end, latest)
            widths = [width for width in widths if times[context][width]]
        medians = [[statistics.median(each[width]) for width in widths] for each in times.values()]
        rows = (
            tuple(round(cost, 3) for cost in accumulate((each / row[0] for each in row), max))
            for row in medians
        )
        return Curve(
            StepCost(tuple(widths), tuple(times), tuple(rows)),
            tuple(row[0] for row in medians),
            sum(len(each[width]) for each in times.values() for width in widths),
        )

    def _affordable(self, text: list[int]) -> tuple[list[int], int]:
        """Widths to measure, and the steps of one width in a row."""
        # The first steps load and compile, and do not count.
        plain = min(min(self._steps(text, 1, 2)) for _ in range(2))
        if plain > SLOW:
            return list(SLOW_WIDTHS), 1
        dear = 0
        for number, width in enumerate(WIDTHS):
            found = self._steps(text, width, 3)
            dear = dear + 1 if min(found, default=0.0) > MAX_COST * plain else 0
            if dear == 2:  # wider steps never pay; one alone may be noise
                return list(WIDTHS[: number + 1]), VISIT
        return list(WIDTHS), VISIT

    def _take_turns(
        self, text: list[int], widths: Sequence[int], visit: int, end: float, latest: float
    ) -> dict[int, list[float]]:
        """Seconds of steps of all widths in turn until `end`; the first round ends at `latest`."""
        times: dict[int, list[float]] = {width: [] for width in widths}
        limit = latest
        while True:
            for width in widths:
                found = self._steps(text, width, visit)
                times[width] += found[1:] if visit > 1 else found
                if self._now() > limit:
                    return times
            limit = end
            if self._now() > limit:
                return times

    def _steps(self, text: list[int], width: int, count: int) -> list[float]:
        """Seconds of some steps of one width after a text; none where memory does not suffice."""
        config = LookaheadConfig(
            budget=width, sources=("context", "recycled"), widths=(1, width) if width > 1 else (1,)
        )
        name = "lookahead" if width > 1 else "autoregressive"
        strategy = make_strategy(name, config, self._drafts[width])
        events = self._decoder.generate(text, strategy, SamplingConfig())
        made = islice((event for event in events if isinstance(event, Step)), 2 * count + 1)
        seconds = list(islice((s.seconds for s in made if s.width == width), count))
        events.close()
        return seconds

    def search(
        self,
        prompts: Sequence[Sequence[int]],
        field: Sequence[Candidate],
        seconds: float,
        plain_step: float,
    ) -> Outcome | None:
        """Drop the slower half of the candidates after each round.

        This is successive halving (Karnin et al., 2013).  Plain decoding and the current setting
        stay to the end, to be compared on the same prompts.

        Args:
            prompts: token ids.
            field: from `candidates`: those two, then the others, the most promising first.
            seconds: how long it may take.
            plain_step: seconds of a plain step.

        Returns:
            None if there is too little time to compare anything.
        """
        if seconds < min_seconds(plain_step):
            return None
        end = self._now() + seconds
        anchors, others = list(field[:2]), list(field[2:])
        for share in (share * seconds for share in ROUNDS):
            affordable = int(share / (MIN_NEW * plain_step)) - len(anchors)
            if affordable <= FINALISTS:
                break  # no time to find out which are worth a try
            others = others[:affordable]
            new = int(share / (2 * (len(others) + 2) * plain_step))
            self._race(prompts, [*anchors, *others], new, share)
            others = [other for other in others if other.speeds]  # the rest is too wide for memory
            others.sort(key=lambda other: -score(other, anchors[0]).speed)
            others = others[: max(len(others) // 2, FINALISTS)]
            for each in (*anchors, *others):
                each.speeds = {}  # the next answers have another length
        left = max(end - self._now(), 0.0)
        most = int(left / (MIN_PROMPTS * REPEATS * MIN_NEW * plain_step)) - len(anchors)
        finalists = [*anchors, *others[: min(max(most, 1), FINALISTS)]]
        new = int(left / (REPEATS * MANY_PROMPTS * len(finalists) * plain_step))
        count = self._race(prompts, finalists, new, left, REPEATS)
        if count == 0 or len(finalists) < 2 or finalists[0] is not anchors[0]:
            return None
        scores = sorted((score(each, anchors[0]) for each in finalists), key=lambda s: -s.speed)
        return Outcome(best_of(scores), tuple(scores), count)

    def _race(
        self,
        prompts: Sequence[Sequence[int]],
        runners: list[Candidate],
        new: int,
        seconds: float,
        repeats: int = 1,
    ) -> int:
        """Time answers of about `new` tokens to as many prompts as `seconds` suffice for.

        Where there are repeats, all prompts come again, and as often as time allows: a later
        repeat sees another state of the machine, so that repeats that agree mean something.

        Returns:
            The number of prompts.
        """
        new = min(max(new, MIN_NEW), MAX_NEW)
        began, once = self._now(), 0.0
        done: list[int] = []
        for number, prompt in enumerate(prompts):
            # It is read before, or the first runner would pay for all.
            if self._decode(None, prompt, MIN_ANSWER)[0] < MIN_ANSWER:
                continue
            self._turn(runners, number, prompt, new)
            done.append(number)
            once = self._now() - began
            passes = repeats if len(done) >= MIN_PROMPTS else 1
            if passes * once * (1 + 1 / len(done)) > seconds:
                break
        while repeats > 1 and done and self._now() + 0.9 * once < began + seconds:
            for number in done:
                self._decode(None, prompts[number], 1)
                self._turn(runners, number, prompts[number], new)
        return len(done)

    def _turn(self, runners: list[Candidate], number: int, prompt: Sequence[int], new: int) -> None:
        """Every runner on one prompt, in turn the first; those without memory leave."""
        first = self._turns % len(runners)
        self._turns += 1
        for runner in (*runners[first:], *runners[:first]):
            self._now()  # moves the bar
            tokens, seconds = self._decode(runner.config, prompt, new)
            if tokens:
                runner.speeds.setdefault(number, []).append(tokens / seconds)
            else:
                runner.speeds = {}
                runners.remove(runner)

    def _decode(
        self, config: LookaheadConfig | None, prompt: Sequence[int], new: int
    ) -> tuple[int, float]:
        """Tokens of an answer after the prompt, none without memory, and the seconds they took."""
        name = "autoregressive" if config is None else "lookahead"
        strategy = make_strategy(name, config or LookaheadConfig())
        limits = Limits(new, self._stop_ids)
        events = self._decoder.generate(prompt, strategy, SamplingConfig(), limits)
        steps = [event for event in events if isinstance(event, Step)]
        seconds = [step.seconds for step in steps]
        # Widths make steps differ, but not by this much: something else ran on this machine.
        most = DISTURBED * statistics.median(seconds) if seconds else 0.0
        return sum(len(step.tokens) for step in steps), sum(min(s, most) for s in seconds)


def candidates(cost: StepCost, current: LookaheadConfig, on_cpu: bool) -> list[Candidate]:
    """Plain decoding, the current setting, and others in the order in which costs suggest them.

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
