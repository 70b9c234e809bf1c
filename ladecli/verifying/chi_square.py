"""Is sampling still sampling?  Drawn tokens against the model's own distribution.

Pearson's test, twice: the strategy's tokens against the probabilities of plain forwards, and
against plain decoding's tokens under other random numbers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..errors import LadeError
from .answer import Watch, decode
from .outcome import Trial

if TYPE_CHECKING:
    from ..decoder.rescoring import Rescorer
    from ..session import Session, Settings

ENOUGH = 50
"""So many samples share a prefix, or what follows it is not tested."""
LEAST = 5.0
"""Samples that every cell is expected to have, for the statistic to be distributed as it should."""
Ids = tuple[int, ...]


class Sampling:
    """Draws answers and tests them.

    Args:
        session: the model at work.
        settings: how to decode, with a temperature above 0; draws have seeds from its own on.
        rescorer: gives the probabilities.
        watch: who waits for it.

    Attributes:
        drawn: answers of the strategy so far.
        plain: answers of plain decoding so far.
    """

    def __init__(
        self, session: Session, settings: Settings, rescorer: Rescorer, watch: Watch | None = None
    ) -> None:
        self._session = session
        self._settings = settings
        self._rescorer = rescorer
        self._watch = watch or Watch()
        self._seeds = 0
        self.drawn = 0
        self.plain = 0

    def trials(self, row: str, prompt: Sequence[int], samples: int) -> list[Trial]:
        """Draw from a prompt with the strategy and with plain decoding, and compare.

        The strategy's drafts go on from draw to draw, so that they are as good as in use.

        Args:
            row: id of the prompt's row.
            prompt: token ids.
            samples: how many answers each draws; fewer where it is broken off.

        Raises:
            PromptError: the prompt is empty or too long.
            LadeError: memory did not suffice.
        """
        drawn = self._draws(prompt, self._settings, samples)
        self.drawn += len(drawn)
        # Plain decoding has keys of its own, and no number of the strategy's.
        self._session.decoder.forget()
        plain = self._draws(prompt, replace(self._settings, strategy="autoregressive"), samples)
        self.plain += len(plain)
        found = list(self._against_model(row, prompt, drawn))
        return found + list(_against_plain(row, drawn, plain))

    def _draws(self, prompt: Sequence[int], settings: Settings, samples: int) -> list[Ids]:
        found: list[Ids] = []
        while len(found) < samples and not self._watch.cancelled():
            seed = (self._settings.sampling.seed + self._seeds) % 2**64
            self._seeds += 1
            seeded = replace(settings, sampling=replace(settings.sampling, seed=seed))
            answer = decode(self._session, prompt, seeded, Watch(self._watch.cancelled))
            if answer.reason == "memory":
                raise LadeError("memory did not suffice for an answer; take a smaller model")
            if answer.reason != "interrupted":
                found.append(answer.ids)
            self._watch.passed(1)
        return found

    def _against_model(
        self, row: str, prompt: Sequence[int], drawn: Sequence[Ids]
    ) -> Iterator[Trial]:
        longest = max((len(ids) for ids in drawn), default=0)
        for position in range(longest):
            by_prefix: dict[Ids, Counter[int]] = {}
            for ids in drawn:
                if len(ids) > position:
                    by_prefix.setdefault(ids[:position], Counter())[ids[position]] += 1
            for prefix, counts in sorted(by_prefix.items()):
                samples = counts.total()
                if samples < ENOUGH:
                    continue
                probabilities = self._rescorer.probabilities(
                    [*prompt, *prefix], len(prompt), self._settings.sampling
                )
                if probabilities is None:
                    raise LadeError(
                        "memory did not suffice to read a text again; take a smaller model"
                    )
                if (found := against(counts, np.array(probabilities))) is not None:
                    cells, statistic, p = found
                    yield Trial("model", row, position + 1, prefix, samples, cells, statistic, p)


def _against_plain(row: str, drawn: Sequence[Ids], plain: Sequence[Ids]) -> Iterator[Trial]:
    longest = max((len(ids) for ids in drawn), default=0)
    for position in range(longest):
        ours = Counter(ids[position] for ids in drawn if len(ids) > position)
        theirs = Counter(ids[position] for ids in plain if len(ids) > position)
        if (found := between(ours, theirs)) is not None:
            cells, statistic, p = found
            yield Trial("plain", row, position + 1, (), ours.total(), cells, statistic, p)


def against(
    counts: Mapping[int, int], probabilities: NDArray[np.float64]
) -> tuple[int, float, float] | None:
    """Counts of tokens against their probabilities.

    Args:
        counts: by token id.
        probabilities: [vocabulary].

    Returns:
        Cells, statistic and p-value; None where too little is expected for two cells.
    """
    from scipy import stats

    observed = np.zeros(len(probabilities))
    for token, count in counts.items():
        observed[token] = count
    expected = probabilities * observed.sum()
    cells = _pooled(expected)
    if len(cells) < 2:
        return None
    test = stats.chisquare(
        [observed[cell].sum() for cell in cells], [expected[cell].sum() for cell in cells]
    )
    return len(cells), float(test.statistic), float(test.pvalue)


def between(ours: Mapping[int, int], theirs: Mapping[int, int]) -> tuple[int, float, float] | None:
    """Counts of tokens against other counts, as `against`."""
    from scipy import stats

    tokens = sorted({*ours, *theirs})
    table = np.array([[counts.get(token, 0) for token in tokens] for counts in (ours, theirs)])
    if table.size == 0 or not table.sum(axis=1).all():
        return None
    # What the smaller side expects of each, were both alike.
    share = table.sum(axis=1).min() / table.sum()
    cells = _pooled(table.sum(axis=0) * share)
    if len(cells) < 2:
        return None
    pooled = np.array([[row[cell].sum() for cell in cells] for row in table])
    test = stats.chi2_contingency(pooled, correction=False)
    return len(cells), float(test.statistic), float(test.pvalue)


def _pooled(expected: NDArray[np.float64]) -> list[NDArray[np.intp]]:
    """Indices by cell: each that expects enough for itself, and all others together."""
    order = np.argsort(-expected, kind="stable")
    alone = int((expected >= LEAST).sum())
    cells, rest = [order[i : i + 1] for i in range(alone)], order[alone:]
    if expected[rest].sum() >= LEAST:
        cells.append(rest)
    elif cells:
        cells[-1] = np.concatenate([cells[-1], rest])
    return cells


def corrected(trials: Sequence[Trial]) -> tuple[Trial, ...]:
    """Trials with p-values for all of them together (Holm, 1979)."""
    order = sorted(range(len(trials)), key=lambda i: trials[i].p)
    found, largest = list(trials), 0.0
    for rank, index in enumerate(order):
        largest = max(largest, min((len(trials) - rank) * trials[index].p, 1.0))
        found[index] = replace(trials[index], corrected=largest)
    return tuple(found)
