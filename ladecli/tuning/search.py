"""Which settings decode fastest here: candidates against each other, side by side."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ..decoder.config import SOURCES, LookaheadConfig, SamplingConfig
from ..decoder.engine import Limits
from ..decoder.errors import ConfigError
from ..decoder.events import Step
from ..decoder.step_cost import StepCost
from ..decoder.strategies import make_strategy
from ..profiles.derive import fitted
from .outcome import PLAIN, UNTIL_NOW, Candidate, Outcome, Score, best_of, score

if TYPE_CHECKING:
    from ..decoder.engine import Decoder

WINDOWS = ((5, 3, 5), (10, 3, 10), (7, 5, 7), (15, 5, 15))
"""W, N and G; beside other sources G changes nothing."""
BUDGETS = (8, 16, 24, 32, 64, 128)
DEAREST = 4.0
"""No budget is tried at which a step costs more plain steps than that."""
NEW = (16, 96)
"""An answer has at least and at most so many tokens."""
SHORTEST = 8
"""A prompt that is answered in fewer tokens than that is left out."""
SHARES = (0.3, 0.15)
"""Of the time, for the rounds before the last; half of the candidates leave after each."""
FINALISTS = 3
REPEATS = 2
"""Times that the last round measures every prompt, if there is time."""
PROMPTS = (3, 6)
"""The last round has at least so many prompts, and answers as long as leaves time for more."""
DISTURBED = 5.0
"""No step counts for more than this many of its setting's median step."""


def candidates(cost: StepCost, shipped: LookaheadConfig, on_cpu: bool) -> list[Candidate]:
    """What to try: plain decoding, the setting until now, and what the curve suggests around it.

    Args:
        cost: measured here.
        shipped: the setting until now.
        on_cpu: products of a few rows take as long as with a multiple of 4 of them there.
    """
    found = [Candidate(PLAIN, None), Candidate(UNTIL_NOW, shipped)]
    repriced = replace(shipped, step_cost=cost)
    if repriced != shipped:
        found.append(Candidate(f"{UNTIL_NOW}, costs as measured", repriced))
    context, base = cost.contexts[0], fitted(cost)
    usable = [b for b in BUDGETS if b <= cost.widths[-1] and cost.at(b, context) <= DEAREST]
    for budget in sorted(usable or BUDGETS[:1], key=lambda b: abs(math.log(b / base.step_limit))):
        grid = (1, *range(4, budget + 1, 4)) if on_cpu else ()
        for sources in (("context", "recycled"), ("context",)):
            _add(found, cost, (*WINDOWS[0], budget), sources, grid)
        for window in WINDOWS:
            _add(found, cost, (*window, budget), SOURCES, grid)
    return found


def _add(
    found: list[Candidate],
    cost: StepCost,
    sizes: tuple[int, int, int, int],
    sources: tuple[str, ...],
    grid: tuple[int, ...],
) -> None:
    window, ngram, guesses, budget = sizes
    try:
        config = LookaheadConfig(window, ngram, guesses, budget, sources, cost, grid)
    except ConfigError:
        return  # a window that the budget has no room for
    if "trajectory" in sources and config.window_cells * 2 > budget:
        return  # nor does it help where it leaves no room for candidates
    shape = f"W={window} N={ngram}" if "trajectory" in sources else "no window"
    found.append(Candidate(f"budget {budget}, {shape}, {'+'.join(sources)}", config))


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
    """Let candidates take turns, prompt by prompt, and drop the slower half after each round.

    Plain decoding and the setting until now stay to the end, so that all are compared with
    them on the same prompts.  (Successive halving: Karnin et al., ICML 2013.)

    Args:
        decoder: the model.
        prompts: token ids.
        field: from `candidates`; the first two are those that stay, of the others those that
            promise most come first.
        seconds: how long it may take.
        plain_step: seconds of a plain step.
        stop_ids: where answers end.
        progress: called every now and then.

    Returns:
        None if there is too little time to compare anything.
    """
    if seconds < enough(plain_step):
        return None
    began = time.perf_counter()
    answer = NEW[0] * plain_step
    anchors, others = list(field[:2]), list(field[2:])
    race = _Race(decoder, prompts, stop_ids, progress)
    affordable = int(SHARES[0] * seconds / answer) - len(anchors)
    if affordable <= FINALISTS:
        others = others[:FINALISTS]  # no time to find out which ones are worth a try
    else:
        others, end = others[:affordable], began
        for share in SHARES:
            end += share * seconds
            race.new = _tokens(share * seconds / (2 * (len(others) + 2)), plain_step)
            race.run([*anchors, *others], end)
            # Those without any figure are too wide for memory.
            others = _ranked([c for c in others if c.speeds], anchors[0])
            others = others[: max(len(others) // 2, FINALISTS)]
            race.start_over([*anchors, *others])
    left = max(began + seconds - time.perf_counter(), 0.0)
    most = int(left / (PROMPTS[0] * REPEATS * answer)) - len(anchors)
    finalists = [*anchors, *others[: min(max(most, 1), FINALISTS)]]
    race.new = _tokens(left / (REPEATS * PROMPTS[1] * len(finalists)), plain_step)
    count = race.last_round(finalists, began + seconds)
    if count == 0 or len(finalists) < 2 or finalists[0] is not anchors[0]:
        return None
    scores = tuple(sorted((score(c, anchors[0]) for c in finalists), key=lambda s: -s.speed))
    return Outcome(best_of(scores), scores, count, _differing(finalists))


def enough(plain_step: float) -> float:
    """Seconds in which one challenger can be compared at all."""
    # Three run; reading the prompts takes about as long as a fourth.
    return 4 * PROMPTS[0] * NEW[0] * plain_step


class _Race:
    """Decodes prompts with candidates in turn.

    Attributes:
        new: tokens of an answer.
    """

    def __init__(
        self,
        decoder: Decoder,
        prompts: Sequence[Sequence[int]],
        stop_ids: frozenset[int],
        progress: Callable[[], None],
    ) -> None:
        self._decoder = decoder
        self._prompts = prompts
        self._stop_ids = stop_ids
        self._progress = progress
        self._turns = 0
        self.new = NEW[0]

    def start_over(self, runners: Sequence[Candidate]) -> None:
        """Forget what was measured: answers had another length."""
        for runner in runners:
            runner.speeds, runner.ids = {}, {}

    def run(self, runners: list[Candidate], end: float) -> None:
        """One prompt after the other, until the time is over."""
        for number in range(len(self._prompts)):
            if self._turn(runners, number) and time.perf_counter() > end:
                break

    def last_round(self, runners: list[Candidate], end: float) -> int:
        """As many prompts as there is time to come back to, and then all of them again.

        Returns:
            How many.
        """
        began = time.perf_counter()
        done: list[int] = []
        for number in range(len(self._prompts)):
            if not self._turn(runners, number):
                continue
            done.append(number)
            now = time.perf_counter()
            again = now - began
            each = again / len(done)
            # A few prompts come first, then a second time for all of them; the next prompt may
            # have a longer answer than most.
            needed = each if len(done) < PROMPTS[0] else again + 3.0 * each
            if now + needed > end:
                break
        once = time.perf_counter() - began
        # A later repeat finds another moment of the machine: repeats that agree mean something.
        while done and time.perf_counter() + 0.9 * once < end:
            for number in done:
                self._turn(runners, number)
        return len(done)

    def _turn(self, runners: list[Candidate], number: int) -> bool:
        """Every runner on one prompt, each time another one first; false if it says too little.

        A runner whose steps memory does not suffice for is taken out.
        """
        # The prompt is read beforehand, or the first would pay for all.
        if len(self._decode(None, self._prompts[number], SHORTEST)[1]) < SHORTEST:
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
        """Tokens per second of an answer, the prompt left out, and its tokens."""
        name = "autoregressive" if config is None else "lookahead"
        strategy = make_strategy(name, config or LookaheadConfig())
        seconds, ids = list[float](), list[int]()
        limits = Limits(new, self._stop_ids)
        for event in self._decoder.generate(prompt, strategy, SamplingConfig(), limits):
            if isinstance(event, Step):
                seconds.append(event.seconds)
                ids += [token.id for token in event.tokens]
        if not seconds:
            return 0.0, ()  # memory does not suffice for a single step
        # Steps of one setting differ by their widths, but not by as much as this: whatever took
        # longer was something else on this machine.
        most = DISTURBED * statistics.median(seconds)
        return len(ids) / sum(min(s, most) for s in seconds), tuple(ids)


def _ranked(runners: Sequence[Candidate], plain: Candidate) -> list[Candidate]:
    return sorted(runners, key=lambda runner: -score(runner, plain).speed)


def _differing(runners: Sequence[Candidate]) -> int:
    """Prompts that some candidate answered in other words than plain decoding."""
    plain, *others = runners
    return sum(any(o.ids[n] != ids for o in others) for n, ids in plain.ids.items())


def _tokens(seconds: float, plain_step: float) -> int:
    """How long an answer may be to take about so many seconds."""
    return min(max(int(seconds / plain_step), NEW[0]), NEW[1])


def setting_of(best: Score | None, until_now: LookaheadConfig, cost: StepCost) -> LookaheadConfig:
    """The setting to write down.

    Where plain decoding was fastest, it is lookahead without room for any draft; where
    nothing was compared, the setting until now at the costs that were measured.

    Args:
        best: of the search, if there was one.
        until_now: the setting until now.
        cost: as measured.
    """
    if best is None:
        return replace(until_now, step_cost=cost)
    config = best.candidate.config
    if config is None:
        return LookaheadConfig(budget=1, sources=("context",), step_cost=cost, widths=(1,))
    return config
