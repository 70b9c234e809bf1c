"""Options about drafts: their sources, and the size of a step."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from ..decoder.config import SOURCES, STRATEGIES, LookaheadConfig
from .declare import Options, option

decode_option = partial(option, "Decoding")
_OF_WINDOW = ("window", "ngram", "guesses")
_OF_LOOKAHEAD = (*_OF_WINDOW, "budget", "sources")
_USED = {"jacobi": "window", "prompt-lookup": "budget"}
"""The option of lookahead that another strategy uses."""


@dataclass(frozen=True, kw_only=True)
class DraftOptions(Options):
    """The options of drafts."""

    strategy: str = decode_option(
        "lookahead, autoregressive, jacobi or prompt-lookup.",
        default="lookahead",
        choices=STRATEGIES,
    )
    profile: str | None = decode_option("Hardware profile; default: the detected device's.")
    window: int | None = decode_option("Columns of the lookahead window (W).", "-W")
    ngram: int | None = decode_option("Length of the n-grams (N).", "-N")
    guesses: int | None = decode_option("N-grams verified in a step (G).", "-G")
    budget: int | None = decode_option("Maximum number of tokens in a step.")
    sources: str | None = decode_option(
        "Where drafts come from, comma-separated: trajectory, context, recycled; or all."
        " trajectory alone is the paper's algorithm."
    )

    def _check(self) -> None:
        super()._check()
        if self.profile is not None:
            from .. import profiles

            profiles.read(self.profile)
        # The profile's values are not known yet; the user's must be right by themselves.
        self.lookahead(LookaheadConfig(window=1, ngram=2))

    @property
    def wants_paper(self) -> bool:
        """Whether the trajectory is the only source, which is the paper's algorithm."""
        return self.sources is not None and _listed(self.sources) == ("trajectory",)

    def lookahead(self, profile: LookaheadConfig) -> LookaheadConfig:
        """Return the profile's settings, replaced by the options that have values."""
        numbers = self._given(*_OF_WINDOW, "budget")
        given: dict[str, Any] = dict(numbers)
        if self.sources is not None:
            given["sources"] = _listed(self.sources)
        elif numbers.keys() & {"window", "ngram"}:
            given["sources"] = SOURCES  # also where the profile leaves the window out
        elif (self.budget or profile.window_cells) < profile.window_cells:
            # A budget without room for the profile's window runs without the window.
            sources = tuple(name for name in profile.sources if name != "trajectory")
            given["sources"] = sources or ("context",)
        if "trajectory" not in given.get("sources", profile.sources):
            numbers = self._given("budget")  # the others are of the window, which does not run
        elif numbers:
            given.setdefault("budget", None)  # the profile's was meant for the profile's window
        if numbers:
            given["widths"] = ()  # so were the widths that steps are rounded to
        return replace(profile, **given)

    def _given(self, *names: str) -> dict[str, int]:
        """Return those of these options that have a value."""
        return {name: value for name in names if (value := getattr(self, name)) is not None}

    def without_effect(self, profile: LookaheadConfig) -> list[str]:
        """Return a line about options that do nothing."""
        if self.strategy != "lookahead":
            # Those of a config file are meant for lookahead.
            others = [key for key in _OF_LOOKAHEAD if key != _USED.get(self.strategy)]
            typed = " and ".join(filter(self._typed, others))
            return [f"strategy {self.strategy} does not use {typed}"] if typed else []
        sources, named = self.lookahead(profile).sources, [*self._given(*_OF_WINDOW)]
        if not named or "trajectory" in sources:
            return []
        does = f"{' and '.join(named)} {'does' if len(named) == 1 else 'do'}"
        wanted = ",".join(["trajectory", *sources])
        return [f"{does} nothing with sources {','.join(sources)}; --sources {wanted} has a window"]


def _listed(text: str) -> tuple[str, ...]:
    """Return the sources that a text names, separated by commas or +; "all" names all."""
    if text.strip() == "all":
        return SOURCES
    return tuple(item.strip() for item in text.replace("+", ",").split(",") if item.strip())
