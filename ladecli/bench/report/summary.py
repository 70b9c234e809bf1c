"""A result and what follows from it, computed once for all parts of a report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..figures import Figures, Interval, figures_of, speedup
from ..result import PLAIN, STOCK, STOCK_COMPILED, Contender, Result, TimeSpent
from ..wording import label

MOST_DRAWN = 8
"""So many contenders can be told apart in a picture."""
HOST = ("draft", "learn")
"""Parts of a step that are the host's own work."""
_HERO = "lookahead"


@dataclass(frozen=True, slots=True)
class Summary:
    """What all formats of a report are made from.

    Attributes:
        result: as it was measured.
        overall: figures of every contender on all prompts.
        by_category: the same by category; empty where there is only one.
        hero: the contender that the report is about; None if nothing was measured beside the
            reference.
        over_hf: how many times as fast the hero is as transformers' `generate`; None if either
            is missing.
        hf: which one that is: the faster of the plain and the compiled one.
    """

    result: Result
    overall: tuple[Figures, ...]
    by_category: Mapping[str, tuple[Figures, ...]]
    hero: Figures | None
    over_hf: Interval | None
    hf: str = STOCK

    @property
    def of_contexts(self) -> bool:
        """Whether categories are lengths of the context."""
        return "context" in self.result.conditions.sweep

    @property
    def swept(self) -> bool:
        """Whether contenders are the cells of a sweep."""
        return any(contender.cell for contender in self.result.contenders)

    @property
    def noun(self) -> str:
        """What a row is: passages of a text are no prompts that somebody would ask."""
        return "text" if self.of_contexts else "prompt"

    @property
    def drawn(self) -> tuple[Figures, ...]:
        """Contenders for pictures in which each has a colour."""
        return self.fastest(MOST_DRAWN)

    def fastest(self, most: int) -> tuple[Figures, ...]:
        """Contenders in their order; if there are more, the reference, the hero and the fastest."""
        fast = sorted(self.overall, key=lambda each: -each.tokens_per_second)
        hero = self.hero.contender if self.hero is not None else None
        known = {each.contender for each in fast}
        first = [name for name in (self.result.reference, hero) if name in known]
        kept = list(dict.fromkeys([*first, *(each.contender for each in fast)]))[:most]
        return tuple(each for each in self.overall if each.contender in kept)

    @property
    def time_spent(self) -> tuple[TimeSpent, ...]:
        """Where time goes, of those who made a step behind the first."""
        return tuple(each for each in self.result.time_spent if each.steps)

    @property
    def beyond(self) -> tuple[str, ...]:
        """Categories with texts that are longer than what the model was made for."""
        most, found = self.result.model.made_for, self.result.runs
        long = (run.category for run in found if 0 < most < run.prompt_tokens + run.tokens)
        return tuple(dict.fromkeys(long))

    def contender(self, name: str) -> Contender:
        """The contender of a name; one that the result does not describe is its own strategy."""
        known = {each.name: each for each in self.result.contenders}
        return known.get(name, Contender(name, name))

    def label(self, name: str | None) -> str:
        """What a contender is called in a sentence."""
        return label(self.contender(name or ""))


def summarise(result: Result) -> Summary:
    """Everything that a report needs to know."""
    overall = tuple(figures_of(result))
    categories = result.categories
    hero = _hero(result, overall)
    stock = [each for each in overall if each.contender in (STOCK, STOCK_COMPILED)]
    hf = max(stock, key=lambda each: each.tokens_per_second).contender if stock else STOCK
    over_hf = None
    if hero is not None and result.reference != hf:
        over_hf = speedup(result.runs_of(hero.contender), result.runs_of(hf))
    return Summary(
        result=result,
        overall=overall,
        by_category={each: tuple(figures_of(result, each)) for each in categories}
        if len(categories) > 1
        else {},
        hero=hero,
        over_hf=over_hf,
        hf=hf,
    )


def host_seconds(spent: TimeSpent) -> float:
    """Of a step, what the host's own work takes."""
    return sum(spent.seconds.get(part, 0.0) for part in HOST)


def _hero(result: Result, overall: tuple[Figures, ...]) -> Figures | None:
    """Lookahead with its defaults, the best cell of a sweep, or whatever else is fastest."""
    strategies = {each.name: each.strategy for each in result.contenders if not each.foreign}
    ours = [
        each
        for each in overall
        if each.contender != result.reference and strategies.get(each.contender, PLAIN) != PLAIN
    ]
    for candidates in (
        [each for each in ours if each.contender == _HERO],
        [each for each in ours if strategies[each.contender] == _HERO],
        ours,
    ):
        if candidates:
            return max(candidates, key=lambda each: _speed(each))
    return None


def _speed(each: Figures) -> tuple[float, float]:
    return (each.speedup.value if each.speedup else 0.0, each.tokens_per_second)
