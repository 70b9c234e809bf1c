"""What tuning found, for people and for programs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import screen
from ..decoder.config import LookaheadConfig
from .outcome import UNTIL_NOW, Outcome, Score

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from ..profiles import Tuned
    from .curve import Curve

SCHEMA = 1
PLOT = 76
"""Columns of the plot."""


@dataclass(frozen=True, slots=True)
class Report:
    """One run of `lade tune`.

    Attributes:
        model: as the user named it.
        key: what it holds for.
        until_now: the profile that was in use, and where its settings are from.
        curve: the measured costs.
        outcome: of the search; None if there was too little time for one.
        setting: the one to use.
        seconds: what it all took, loading left out.
        advised: seconds to give where there was no time to compare settings.
    """

    model: str
    key: Tuned
    until_now: str
    curve: Curve
    outcome: Outcome | None
    setting: LookaheadConfig
    seconds: float
    advised: int

    @property
    def verdict(self) -> str:
        """What it comes to, in one line."""
        setting = self.setting
        shape = f"budget {setting.step_limit}, {'+'.join(setting.sources)}"
        if "trajectory" in setting.sources:
            shape = f"W={setting.window} N={setting.ngram} G={setting.guesses}, {shape}"
        if self.outcome is None:
            return f"{shape}, as before, at the costs measured here: there was no time to compare"
        best = self.outcome.best
        if best.candidate.config is None:
            return "plain decoding is fastest here: no draft pays for itself"
        kept = (
            f" (as before, profile {self.until_now.split(',')[0]})"
            if best.candidate.name == UNTIL_NOW
            else ""
        )
        slower = ", which was no slower" if best.speed < 1.0 else ""
        speed = f"{best.speed:.2f}× plain decoding{slower} on {_prompts(self.outcome)}"
        return f"{shape}{kept}: {speed}"

    @property
    def doubts(self) -> list[str]:
        """What speaks against these figures."""
        found = []
        if not math.isfinite(self.curve.spread):
            found.append("each step was measured once or twice only; --seconds gives more time")
        elif self.curve.spread > 0.1:
            found.append(f"two halves of the step times differ by {self.curve.spread:.0%}")
        outcome = self.outcome
        if outcome is None:
            found.append(f"--seconds {self.advised} or more is time to compare settings")
        elif outcome.agrees is None:
            found.append("there was no time for a repeat: --seconds gives more")
        elif not outcome.agrees:
            found.append(
                f"repeats differ by {outcome.disagreement:.0%}: something else runs here; tune"
                " again when this machine is quiet"
            )
        if outcome is not None and outcome.differing:
            found.append(
                f"{outcome.differing} of {outcome.prompts} answers differed from plain decoding's:"
                " near-ties, as half precision and quantised weights have them"
            )
        return found


def _prompts(outcome: Outcome) -> str:
    return f"{outcome.prompts} sample prompt{'' if outcome.prompts == 1 else 's'}"


def show(report: Report, console: Console) -> None:
    """Print plot, tables and verdict."""
    curve = report.curve
    title = f"What a step of so many tokens costs, in plain steps ({report.key.device})"
    screen.line(console, title, "bold")
    if screen.draws(console, PLOT):
        console.print(plot(curve))
    screen.show(_costs(curve), console)
    if math.isfinite(curve.ridge):
        ridge = f"{curve.ridge:.0f} tokens take as much arithmetic as a plain step takes time"
        screen.line(console, f"ridge: {ridge}")
    console.print()
    if report.outcome is not None:
        screen.line(console, f"What is fastest ({_prompts(report.outcome)})", "bold")
        screen.show(_contest(report.outcome), console)
    for doubt in report.doubts:
        screen.line(console, f"note: {doubt}")
    screen.line(console, report.verdict, "bold")


def plot(curve: Curve) -> str:
    """The cost of a step over its width, one line with its number for each length of text."""
    import plotille

    figure = plotille.Figure()
    figure.width, figure.height = 50, 10
    figure.with_colors = False
    # Marks stand ten columns and one row apart; these limits put them on round numbers.
    figure.set_x_limits(0, 25 * math.ceil(curve.cost.widths[-1] / 25))
    top = max(max(row) for row in curve.cost.costs)
    figure.set_y_limits(0, next((y for y in (2, 5, 10, 20, 50) if y >= top), math.ceil(top)))
    figure.x_label, figure.y_label = "tokens", "cost"
    figure.x_ticks_fkt = lambda low, _high: f"{low:.0f}"
    figure.y_ticks_fkt = lambda low, _high: f"{low:.1f}"
    for number, row in enumerate(curve.cost.costs, start=1):
        figure.plot(curve.cost.widths, row, marker=str(number))
    return str(figure.show())


def _costs(curve: Curve) -> Table:
    """Costs at every other width, by length of the text; of a plain step also the time."""
    table = screen.bare_table()
    table.add_column("tokens", justify="right")
    for number, context in enumerate(curve.cost.contexts, start=1):
        table.add_column(f"{number}: behind {context:,}", justify="right")
    for column, width in enumerate(curve.cost.widths):
        if width == 1:
            table.add_row("1", *(f"1 ({plain * 1e3:.3g} ms)" for plain in curve.plain))
        elif width & (width - 1) == 0:
            table.add_row(str(width), *(f"{row[column]:.2f}" for row in curve.cost.costs))
    return table


def _contest(outcome: Outcome) -> Table:
    table = screen.bare_table()
    table.add_column("setting", overflow="fold")
    table.add_column("speed", justify="right")
    table.add_column("repeats", justify="right")
    for score in outcome.scores:
        mark = " ←" if score is outcome.best else ""
        repeats = " ".join(f"{repeat:.2f}" for repeat in score.repeats[:4])
        table.add_row(f"{score.candidate.name}{mark}", f"{score.speed:.2f}×", repeats)
    return table


def as_object(report: Report, path: Path | None) -> dict[str, Any]:
    """The figures for programs; its keys are part of the interface.

    Args:
        report: what was found.
        path: the profile that was written; None if none was.
    """
    curve, setting, key = report.curve, report.setting, report.key
    return {
        "schema": SCHEMA,
        "model": report.model,
        "device": key.device,
        "parameters": key.parameters,
        "weights": key.weights,
        "attention": key.attention,
        "versions": dict(key.versions),
        "date": key.date,
        "seconds": round(report.seconds, 3),
        "step_cost": {
            "widths": list(curve.cost.widths),
            "contexts": list(curve.cost.contexts),
            "costs": [list(row) for row in curve.cost.costs],
            "plain_seconds": list(curve.plain),
            "spread": curve.spread if math.isfinite(curve.spread) else None,
            "steps": curve.steps,
            "ridge": curve.ridge if math.isfinite(curve.ridge) else None,
        },
        "search": None if report.outcome is None else _search(report.outcome),
        "setting": {
            "window": setting.window,
            "ngram": setting.ngram,
            "guesses": setting.guesses,
            "budget": setting.step_limit,
            "sources": list(setting.sources),
            "widths": list(setting.widths),
        },
        "profile": None if path is None else str(path),
    }


def _search(outcome: Outcome) -> dict[str, Any]:
    return {
        "candidates": [_score(score) for score in outcome.scores],
        "best": outcome.best.candidate.name,
        "agrees": outcome.agrees,
        "prompts": outcome.prompts,
        "differing": outcome.differing,
    }


def _score(score: Score) -> dict[str, Any]:
    return {
        "name": score.candidate.name,
        "speed": score.speed,
        "repeats": list(score.repeats),
    }
