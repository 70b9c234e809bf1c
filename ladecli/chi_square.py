"""Chi-square tests of sampling: drawn tokens against probabilities, and against other draws.

The tokens of a strategy are compared with the probabilities of plain forwards, after every
prefix that is frequent enough, and with the tokens that plain decoding drew from other seeds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from .bench.result import Skipped
from .bench.statistics import holm
from .visualize import counted

LEVEL = 0.01
"""Share of whole runs that report a difference where there is none."""
MAX_SHOWN = 5
"""Failed tests that are printed one by one."""
MIN_SAMPLES = 50
"""Samples after a prefix, below which the next token is not tested."""
MIN_EXPECTED = 5.0
"""Expected samples of a cell, below which the statistic is not distributed as chi-square."""

Ids: TypeAlias = tuple[int, ...]
TestResult: TypeAlias = tuple[int, float, float]
"""Cells, statistic and p-value."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One test.

    Attributes:
        against: "model" for its probabilities, "plain" for the tokens that plain decoding drew.
        position: of the token in the answer, from 1 on.
        prefix: ids of the answer before it; empty against "plain", which has all prefixes.
        samples: of the strategy.
        cells: tokens, the rare ones pooled.
        p: p-value of this test alone.
        corrected: p-value for all tests of the run together (Holm, 1979).
    """

    against: Literal["model", "plain"]
    row: str
    position: int
    prefix: Ids
    samples: int
    cells: int
    statistic: float
    p: float
    corrected: float = 1.0


@dataclass(slots=True)
class Sampled:
    """Answers drawn many times, and the tests of their distribution.

    Attributes:
        samples: answers that each side was to draw for every prompt.
        drawn, plain: answers that the strategy and plain decoding drew.
        rows: ids of the prompts.
        trials: all tests.
        sampling: values that are not the default, and the first seed.
        skipped: prompts that could not be answered, and why.
        interrupted: whether Ctrl-C ended it early.
    """

    samples: int
    drawn: int = 0
    plain: int = 0
    rows: list[str] = field(default_factory=list)
    trials: tuple[Trial, ...] = ()
    sampling: dict[str, int | float] = field(default_factory=dict)
    skipped: list[Skipped] = field(default_factory=list)
    interrupted: bool = False

    @property
    def failed(self) -> int:
        """Number of tests that found a difference."""
        return sum(trial.corrected < LEVEL for trial in self.trials)

    @property
    def passed(self) -> bool:
        """Whether something was tested, and no difference was found."""
        return bool(self.trials) and not self.failed

    @property
    def verdict(self) -> str:
        """The result in one line."""
        if not self.trials:
            return "nothing could be tested: more samples are needed"
        tests = counted(len(self.trials), "test")
        if self.failed:
            return f"DIFFERENT: {self.failed} of {tests} failed"
        least = min(trial.corrected for trial in self.trials)
        return f"no difference found in {tests} (smallest p-value, corrected: {least:.2g})"

    @property
    def details(self) -> list[str]:
        """The number of answers, and the tests that failed."""
        counts = (
            f"{self.drawn:,} answers, and {self.plain:,} of plain decoding, to"
            f" {counted(len(self.rows), 'prompt')}; level {LEVEL:g} for all tests together"
        )
        against = {"model": "the model's probabilities", "plain": "plain decoding's answers"}
        failed = [
            f"{each.row}, token {each.position}: differs from {against[each.against]}"
            f" (p-value, corrected: {each.corrected:.2g})"
            for each in self.trials
            if each.corrected < LEVEL
        ]
        more = [f"… and {len(failed) - MAX_SHOWN} more; --json has all"]
        return [counts, *failed[:MAX_SHOWN], *(more if len(failed) > MAX_SHOWN else [])]

    def as_object(self, settings: dict[str, int | str]) -> dict[str, Any]:
        """Its part of the JSON object; keys are part of the interface."""
        return {"chi_square": {**asdict(self), "settings": settings, "level": LEVEL}}


def against_model(
    row: str, drawn: Sequence[Ids], probabilities: Callable[[Ids], Sequence[float]]
) -> Iterator[Trial]:
    """Test the answers to a prompt against the model's own distribution.

    Args:
        row: id of the prompt.
        drawn: answers.
        probabilities: [vocabulary] of the next token after a prefix of an answer.
    """
    after: dict[Ids, Counter[int]] = {}
    for ids in drawn:
        for position, token in enumerate(ids):
            after.setdefault(ids[:position], Counter())[token] += 1
    for prefix, counts in sorted(after.items(), key=lambda item: (len(item[0]), item[0])):
        samples = counts.total()
        if samples < MIN_SAMPLES:
            continue
        if found := probability_test(counts, np.array(probabilities(prefix))):
            yield Trial("model", row, len(prefix) + 1, prefix, samples, *found)


def against_plain(row: str, drawn: Sequence[Ids], plain: Sequence[Ids]) -> Iterator[Trial]:
    """Test the answers to a prompt against those of plain decoding, position by position."""
    for position in range(max(map(len, drawn), default=0)):
        ours = Counter(ids[position] for ids in drawn if len(ids) > position)
        theirs = Counter(ids[position] for ids in plain if len(ids) > position)
        if found := count_test(ours, theirs):
            yield Trial("plain", row, position + 1, (), ours.total(), *found)


def probability_test(
    counts: Mapping[int, int], probabilities: NDArray[np.float64]
) -> TestResult | None:
    """Test counts of tokens against their probabilities.

    Args:
        counts: by token id.
        probabilities: [vocabulary].

    Returns:
        None where fewer than two cells can be expected to have enough samples.
    """
    from scipy import stats

    observed = np.zeros(len(probabilities))
    observed[list(counts)] = list(counts.values())
    expected = probabilities * observed.sum()
    cells = _pooled(expected)
    if len(cells) < 2:
        return None
    test = stats.chisquare(
        [observed[cell].sum() for cell in cells], [expected[cell].sum() for cell in cells]
    )
    return len(cells), float(test.statistic), float(test.pvalue)


def count_test(ours: Mapping[int, int], theirs: Mapping[int, int]) -> TestResult | None:
    """Test whether two counts of tokens have one distribution; None as `probability_test`."""
    from scipy import stats

    tokens = sorted({*ours, *theirs})
    table = np.array([[counts.get(token, 0) for token in tokens] for counts in (ours, theirs)])
    if not table.sum(axis=1).all():
        return None
    # Expected of the smaller side, if both have one distribution.
    share = table.sum(axis=1).min() / table.sum()
    cells = _pooled(table.sum(axis=0) * share)
    if len(cells) < 2:
        return None
    pooled = np.array([[row[cell].sum() for cell in cells] for row in table])
    test = stats.chi2_contingency(pooled, correction=False)
    return len(cells), float(test.statistic), float(test.pvalue)


def corrected(trials: Sequence[Trial]) -> tuple[Trial, ...]:
    """Trials with p-values corrected for their number."""
    values = holm([trial.p for trial in trials])
    return tuple(replace(trial, corrected=p) for trial, p in zip(trials, values, strict=True))


def _pooled(expected: NDArray[np.float64]) -> list[NDArray[np.intp]]:
    """Indices by cell: one each for what is expected often enough, the rest pooled."""
    order = np.argsort(-expected, kind="stable")
    frequent = int((expected >= MIN_EXPECTED).sum())
    cells, rest = [order[i : i + 1] for i in range(frequent)], order[frequent:]
    if expected[rest].sum() >= MIN_EXPECTED:
        cells.append(rest)
    elif cells:
        cells[-1] = np.concatenate([cells[-1], rest])
    return cells
