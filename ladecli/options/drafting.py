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
        # Only the user's values are checked, since the profile's are not known yet.
        self.lookahead(LookaheadConfig(window=1, ngram=2))

    @property
    def wants_paper(self) -> bool:
        """True if the trajectory is the only source, which is the paper's algorithm."""
        return self.sources is not None and _listed(self.sources) == ("trajectory",)

    def lookahead(self, profile: LookaheadConfig) -> LookaheadConfig:
        """Return the profile's settings, replaced by the options that have values."""
        numbers = self._set_values(*_OF_WINDOW, "budget")
        changes: dict[str, Any] = dict(numbers)
        if self.sources is not None:
            changes["sources"] = _listed(self.sources)
        elif numbers.keys() & {"window", "ngram"}:
            changes["sources"] = SOURCES  # even if the profile leaves the window out
        elif (self.budget or profile.window_cells) < profile.window_cells:
            # A budget without room for the profile's window runs without the window.
            sources = tuple(name for name in profile.sources if name != "trajectory")
            changes["sources"] = sources or ("context",)
        if "trajectory" not in changes.get("sources", profile.sources):
            numbers = self._set_values("budget")  # the others belong to the window, which is off
        elif numbers:
            changes.setdefault("budget", None)  # the profile's was meant for the profile's window
        if numbers:
            changes["widths"] = ()  # the profile's step widths were meant for its own budget
        return replace(profile, **changes)

    def _set_values(self, *names: str) -> dict[str, int]:
        """Return the values of these options, without those that are not set."""
        return {name: value for name in names if (value := getattr(self, name)) is not None}

    def without_effect(self, profile: LookaheadConfig) -> list[str]:
        """Return a line about options without effect."""
        if self.strategy != "lookahead":
            # Options in a config file are meant for lookahead.
            others = [key for key in _OF_LOOKAHEAD if key != _USED.get(self.strategy)]
            typed = " and ".join(filter(self._typed, others))
            return [f"strategy {self.strategy} does not use {typed}"] if typed else []
        sources, named = self.lookahead(profile).sources, [*self._set_values(*_OF_WINDOW)]
        if not named or "trajectory" in sources:
            return []
        does = f"{' and '.join(named)} {'does' if len(named) == 1 else 'do'}"
        fix = ",".join(["trajectory", *sources])
        return [f"{does} nothing with sources {','.join(sources)}; --sources {fix} has a window"]


def _listed(text: str) -> tuple[str, ...]:
    """Return the sources that a text names, separated by commas or +; "all" names all."""
    if text.strip() == "all":
        return SOURCES
    return tuple(item.strip() for item in text.replace("+", ",").split(",") if item.strip())
