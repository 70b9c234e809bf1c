"""Chi-square tests of sampling: the tokens of many answers against the model's probabilities."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..errors import counted
from .result import Skipped

LEVEL = 0.01
"""Share of whole runs that report a difference where there is none."""
MIN_SAMPLES = 50
"""Samples after a prefix, below which the next token is not tested."""
MIN_EXPECTED = 5.0
"""Expected samples of a cell, below which the statistic is not distributed as chi-square."""

Ids: TypeAlias = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TokenTest:
    """A test of the token after a prefix."""

    row: str
    position: int  # of the token, from 1 on
    prefix: Ids
    samples: int
    cells: int  # of which one is for all rare tokens; 1 for the exact test
    statistic: float  # chi-square; of the exact test, the share of the likeliest token
    p: float
    corrected: float = 1.0  # the p-value for all tests together


@dataclass(slots=True)
class Sampled:
    """Answers drawn many times, and the tests of their distribution; the JSON of `--chi-square`."""

    settings: dict[str, int | str]  # of the strategy
    sampling: dict[str, int | float]  # values that are not the default, and the first seed
    samples: int  # answers asked for of every prompt in `rows`
    drawn: int = 0  # answers of all prompts together
    rows: list[str] = field(default_factory=list)
    trials: list[TokenTest] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    interrupted: bool = False

    def test(
        self, row: str, drawn: Sequence[Ids], probabilities: Callable[[Ids], Sequence[float]]
    ) -> None:
        """Test the next token after every frequent prefix of the answers to a prompt.

        `probabilities` computes those of the next token [vocabulary] in plain forwards.
        """
        self.rows.append(row)
        self.drawn += len(drawn)
        after: dict[Ids, Counter[int]] = {}
        for ids in drawn:
            for position, token in enumerate(ids):
                after.setdefault(ids[:position], Counter())[token] += 1
        for prefix, counts in sorted(after.items(), key=lambda item: (len(item[0]), item[0])):
            samples = counts.total()
            if samples >= MIN_SAMPLES and (
                found := probability_test(counts, np.array(probabilities(prefix)))
            ):
                self.trials.append(TokenTest(row, len(prefix) + 1, prefix, samples, *found))
        count = len(self.trials)  # Bonferroni's correction
        self.trials = [replace(each, corrected=min(each.p * count, 1.0)) for each in self.trials]

    @property
    def failed(self) -> list[TokenTest]:
        """Tests that found a difference."""
        return [trial for trial in self.trials if trial.corrected < LEVEL]

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
            return f"DIFFERENT: {len(self.failed)} of {tests} failed"
        least = min(trial.corrected for trial in self.trials)
        return f"no difference found in {tests} (smallest p-value, corrected: {least:.2g})"

    @property
    def details(self) -> list[str]:
        """The number of answers, and the tests that failed."""
        prompts = counted(len(self.rows), "prompt")
        return [
            f"{self.drawn:,} answers to {prompts}; level {LEVEL:g} for all tests together",
            *(
                f"{each.row}, token {each.position}: differs from the model's probabilities"
                f" (p-value, corrected: {each.corrected:.2g})"
                for each in self.failed
            ),
        ]

    def as_object(self) -> dict[str, Any]:
        """Its part of the JSON object; keys are part of the interface."""
        return {"chi_square": {**asdict(self), "level": LEVEL}}


def probability_test(
    counts: Mapping[int, int], probabilities: NDArray[np.float64]
) -> tuple[int, float, float] | None:
    """Cells, statistic and p-value of counts of token ids against probabilities [vocabulary].

    Where only one token can be expected to have enough samples, that is an exact test of it
    against all others; None where there is no such token.
    """
    from scipy.stats import binomtest, chisquare

    observed = np.zeros(len(probabilities))
    observed[list(counts)] = list(counts.values())
    expected = probabilities * observed.sum()
    # A cell for each token that is expected often enough.  The others are one cell, or where that
    # is too small a part of the last one.
    order = np.argsort(-expected, kind="stable")
    frequent = int((expected >= MIN_EXPECTED).sum())
    cells = frequent + int(expected[order][frequent:].sum() >= MIN_EXPECTED)
    if not frequent:
        return None
    if cells < 2:
        likeliest = order[0]
        share = min(float(probabilities[likeliest]), 1.0)  # which rounding may exceed
        exact = binomtest(int(observed[likeliest]), int(observed.sum()), share)
        return cells, float(exact.statistic), float(exact.pvalue)
    sums = [np.add.reduceat(each[order], range(cells)) for each in (observed, expected)]
    test = chisquare(*sums)
    return cells, float(test.statistic), float(test.pvalue)
