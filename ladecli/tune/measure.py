"""What steps cost here, and which settings decode fastest: the measurements of `lade tune`."""

from __future__ import annotations

import math
import random
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, cycle, islice
from typing import TYPE_CHECKING

from ..decoder.config import WITHOUT_WINDOW, Limits, LookaheadConfig
from ..decoder.drafting.store import DraftStore
from ..decoder.events import Step
from ..decoder.step_cost import StepCost
from ..decoder.strategies import make_strategy
from ..errors import LadeError
from ..profiles.derive import fit_settings

if TYPE_CHECKING:
    from ..decoder.decoder import Decoder

WIDTHS = (1, 8, 32, 2, 16, 64, 4, 24, 48, 96, 128)
"""In the order of being measured: a slow model has no time for the last of them."""
CONTEXTS = (128, 1024, 4096, 16384)
VISIT, LONG = 4, 0.1
"""Steps of one width in a row, and seconds after which two must do; the first one, which finds the
caches of another, does not count."""
MIN_WIDTHS = 3
"""Fewer make no curve."""
ROOM = 128
"""Tokens that a visit may add to its text."""
MAX_COST = 4.0
"""Plain steps that a wider one may cost; beyond, none pays."""

PLAIN, CURRENT = "plain decoding", "the current profile"
"""Names of the two candidates that all others are compared with."""
BUDGETS = (8, 16, 24, 32, 64, 128)
MIN_NEW, MAX_NEW = 16, 96
"""Tokens of an answer."""
MIN_ANSWER = 8
"""Prompts that are answered in fewer tokens are left out."""
ROUND = 0.15
"""Share of the time after which half of the candidates leave, as long as there are many."""
FINALISTS, PASSES = 3, 3
"""Candidates of the last round beside the two, and how often it should see every prompt."""
MIN_PROMPTS, MANY_PROMPTS = 3, 6
"""Prompts: at least 3, and 6 before answers become longer than they must be."""
CHANCE = 0.05
"""Chance that a setting replaces the current profile and is no faster."""


@dataclass(frozen=True, slots=True)
class Curve:
    """Measured costs of steps, seconds of a plain step for each context, and the steps in all."""

    cost: StepCost
    plain: tuple[float, ...]
    steps: int


@dataclass(slots=True)
class Candidate:
    """A setting, and what it gains over plain decoding."""

    name: str  # for people
    config: LookaheadConfig | None  # None for plain decoding
    # By prompt, for each repeat: the logarithm of its speed over plain decoding's.
    gains: dict[int, list[float]] = field(default_factory=dict)

    @property
    def by_prompt(self) -> list[float]:
        """The gain on each prompt: of its repeats, the median."""
        return [statistics.median(gains) for gains in self.gains.values()]

    @property
    def speed(self) -> float:
        """Geometric mean of its speeds over plain decoding's."""
        return math.exp(statistics.fmean(self.by_prompt))


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a search found: the setting to use, all of the last round by speed, and its prompts."""

    best: Candidate
    finalists: tuple[Candidate, ...]
    prompts: int

    @property
    def kept(self) -> bool:
        """Whether the settings that were in use are the ones to use."""
        return self.best.name == CURRENT


class Tuner:
    """Measures a decoder, whose answers end at `stop_ids`, by a clock of seconds."""

    def __init__(
        self,
        decoder: Decoder,
        stop_ids: frozenset[int] = frozenset(),
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._decoder, self._stop_ids, self._now = decoder, stop_ids, clock
        self._drafts: dict[int, DraftStore] = defaultdict(DraftStore)
        self._draw = random.Random(0)

    def measure_curve(self, text: Sequence[int], seconds: float) -> Curve:
        """Measure steps of real generations, all widths taking turns.

        The text is repeated as often as a context needs.  Contexts and widths that the model cannot
        hold, or that would take too long, are left out.  Costs are medians, raised where noise made
        a wider step seem cheaper.
        """
        end = self._now() + seconds
        contexts = [c for c in CONTEXTS if c <= self._decoder.max_context - ROOM]
        contexts = contexts or [min(CONTEXTS[0], self._decoder.max_context // 3)]
        longest = (list(text) * (contexts[-1] // len(text) + 1))[: contexts[-1]]
        self._steps(longest[: contexts[0]], 1)  # the first steps load and compile
        widths, times = list(WIDTHS), dict[int, dict[int, list[float]]]()
        for context in contexts:
            now, width = self._now(), max(widths)
            # Half of what is left, since most texts are short; all of it for the last.
            until = end if context == contexts[-1] else (now + end) / 2
            if times:
                reading = statistics.median(times[contexts[0]][width]) * context / width
                if reading > (end - now) / 2:
                    break
            found = self._rounds(longest[:context], widths, until)
            if times and not all(found.values()):
                break  # a part of a round says too little of another context
            times[context] = found
            widths = _payable(found)
        medians = [
            [statistics.median(each[width]) for width in sorted(widths)] for each in times.values()
        ]
        rows = (
            tuple(round(cost, 3) for cost in accumulate((each / row[0] for each in row), max))
            for row in medians
        )
        return Curve(
            StepCost(tuple(sorted(widths)), tuple(times), tuple(rows)),
            tuple(row[0] for row in medians),
            sum(len(each[width]) for each in times.values() for width in widths),
        )

    def _rounds(self, prompt: list[int], widths: list[int], until: float) -> dict[int, list[float]]:
        """Seconds of steps by width.  Those that cost too much are made in the first round only."""
        found: dict[int, list[float]] = {width: [] for width in widths}
        while True:
            for width in widths:
                found[width] += self._steps(prompt, width)[1:]
                if self._now() > until:
                    return found
            widths = _payable(found)

    def _steps(self, text: list[int], width: int) -> list[float]:
        """Seconds of some steps of one width after a text; none where memory does not suffice."""
        config = LookaheadConfig(
            budget=width, sources=WITHOUT_WINDOW, widths=(1, width) if width > 1 else (1,)
        )
        name = "lookahead" if width > 1 else "autoregressive"
        strategy = make_strategy(name, config, self._drafts[width])
        events = self._decoder.generate(text, strategy)
        seconds: list[float] = []
        for step in islice((event for event in events if isinstance(event, Step)), 2 * VISIT + 1):
            seconds += [step.seconds] if step.width == width else []
            if len(seconds) >= (VISIT if sum(seconds) < LONG else 2):
                break
        events.close()
        return seconds

    def search(
        self,
        prompts: Sequence[Sequence[int]],
        candidates: Sequence[Candidate],
        seconds: float,
        plain_step: float,
    ) -> Outcome | None:
        """Drop the slower half of the candidates after each round; None without time to compare.

        This is successive halving (Karnin et al., 2013).  The first two, plain decoding and the
        current setting, stay to the end, to be compared on the same prompts.

        A plain step takes `plain_step` seconds.
        """
        answer = MIN_NEW * plain_step
        # Three candidates run, and reading the prompts takes about as long as a fourth.
        if seconds < 4 * MIN_PROMPTS * answer:
            return None
        end = self._now() + seconds
        affordable = int(2 * ROUND * seconds / answer)
        runners = list(candidates[: max(affordable, 3)])
        last = min(len(runners), 2 + FINALISTS)
        tokens = seconds / (last * PASSES * plain_step)  # of all answers of one in the last round
        new = int(min(max(tokens / MANY_PROMPTS, MIN_NEW), MAX_NEW))
        count = int(max(tokens / (2 * new), MIN_PROMPTS))
        answered = (p for p in prompts if self._decode(None, p, MIN_ANSWER)[0] >= MIN_ANSWER)
        if not (chosen := list(islice(answered, count))):
            raise LadeError(f"no prompt is answered in {MIN_ANSWER} tokens or more; give --prompts")
        round_end = self._now() + ROUND * seconds
        for number in cycle(range(len(chosen))):
            began = self._now()
            self._turn(runners, number, chosen[number], new)
            now = self._now()
            if now + (now - began) > end:
                break
            others = [each for each in runners if each.name not in (PLAIN, CURRENT)]
            if len(others) > FINALISTS and now > round_end:
                others.sort(key=lambda each: each.speed)
                for slow in others[: min(len(others) // 2, len(others) - FINALISTS)]:
                    runners.remove(slow)
                for each in runners:  # the next round is judged by itself
                    each.gains = {}
                round_end = now + ROUND * seconds
        if not runners[0].gains:
            return None
        runners.sort(key=lambda each: -each.speed)
        return Outcome(best_of(runners), tuple(runners), len(runners[0].gains))

    def _turn(self, runners: list[Candidate], number: int, prompt: Sequence[int], new: int) -> None:
        """Every runner on one prompt, in a shuffled order."""
        self._decode(None, prompt, 1)  # it is read before, or the first runner would pay for all
        speeds: dict[str, float] = {}
        for runner in self._draw.sample(runners, len(runners)):
            tokens, seconds = self._decode(runner.config, prompt, new)
            if not tokens:
                raise LadeError(f"out of memory with {runner.name}; take a smaller model")
            speeds[runner.name] = tokens / seconds
        for runner in runners:
            gain = math.log(speeds[runner.name] / speeds[PLAIN])
            runner.gains.setdefault(number, []).append(gain)

    def _decode(
        self, config: LookaheadConfig | None, prompt: Sequence[int], new: int
    ) -> tuple[int, float]:
        """Tokens of an answer after the prompt, none without memory, and the seconds they took."""
        name = "autoregressive" if config is None else "lookahead"
        strategy = make_strategy(name, config or LookaheadConfig())
        limits = Limits(new, self._stop_ids)
        events = self._decoder.generate(prompt, strategy, limits=limits)
        steps = [event for event in events if isinstance(event, Step)]
        return sum(len(step.tokens) for step in steps), sum(step.seconds for step in steps)


def _payable(times: dict[int, list[float]]) -> list[int]:
    """The widths that were measured, in their order, up to the first beyond all that are cheap.

    The narrowest are kept whatever they cost.
    """
    costs = {width: statistics.median(found) for width, found in times.items() if found}
    # A narrower one that seems dear was disturbed, and so may be all but the plain step.
    cheap = max(width for width, cost in costs.items() if cost <= MAX_COST * costs[1])
    cheap = max(cheap, *sorted(costs)[:MIN_WIDTHS])
    widest = min((width for width in costs if width > cheap), default=cheap)
    return [width for width in costs if width <= widest]


def make_candidates(cost: StepCost, current: LookaheadConfig, on_cpu: bool) -> list[Candidate]:
    """Plain decoding, the current setting, and others in the order in which costs suggest them."""
    found = [Candidate(PLAIN, None), Candidate(CURRENT, current)]
    repriced = replace(current, step_cost=cost)
    if repriced != current:
        found.append(Candidate(f"{CURRENT}, costs as measured", repriced))
    context, base = cost.contexts[0], fit_settings(cost)
    usable = [b for b in BUDGETS if b <= cost.widths[-1] and cost.at(b, context) <= MAX_COST]
    for budget in sorted(usable or BUDGETS[:1], key=lambda b: abs(math.log(b / base.step_limit))):
        # On a CPU, a product of a few rows takes as long as with a multiple of 4 of them.
        grid = (1, *range(4, budget + 1, 4)) if on_cpu else ()
        for sources in (WITHOUT_WINDOW, ("context",)):
            config = LookaheadConfig(budget=budget, sources=sources, step_cost=cost, widths=grid)
            found.append(Candidate(f"budget {budget}, {'+'.join(sources)}", config))
    return found


def best_of(finalists: Sequence[Candidate]) -> Candidate:
    """The fastest (the first), or the current setting where other prompts might say otherwise."""
    from scipy.stats import ttest_rel

    fastest = finalists[0]
    current = next(each for each in finalists if each.name == CURRENT)
    if fastest is current or len(fastest.gains) < MIN_PROMPTS:
        return current
    test = ttest_rel(fastest.by_prompt, current.by_prompt, alternative="greater")
    # Each of those that could have been the fastest had its chance.
    return fastest if test.pvalue < CHANCE / (len(finalists) - 1) else current


def setting_of(best: Candidate, cost: StepCost) -> LookaheadConfig:
    """The setting to write.

    Where plain decoding was fastest, it is lookahead without room for any draft, at the measured
    cost of steps.
    """
    if best.config is None:
        return LookaheadConfig(budget=1, sources=("context",), step_cost=cost, widths=(1,))
    return best.config
