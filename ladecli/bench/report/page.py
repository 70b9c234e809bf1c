"""A report as one page of HTML: charts and tables, without scripts, and nothing from elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from importlib.resources import files

from ..wording import decimal, interval, times
from . import charts, ink, sweep_charts, time_charts
from .charts import Chart
from .document import Section, document
from .summary import Summary
from .tables import equality_cell

_CHARTS: Mapping[str, tuple[Callable[[Summary, Section], Iterable[Chart]], ...]] = {
    "overall": (charts.overall, time_charts.runs),
    "sweep": (sweep_charts.sweep,),
    "law": (sweep_charts.law,),
    "categories": (charts.categories, sweep_charts.contexts),
    "time": (time_charts.time,),
}
"""What draws the charts of each section, by its key."""


def html(summary: Summary) -> str:
    """The whole page.

    Every text goes through the template, which escapes it; charts are SVG that matplotlib escaped.
    """
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    template = files(__package__).joinpath("page.html.j2").read_text(encoding="utf-8")
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    # No line begins with a percent sign.
    environment.filters["unbroken"] = lambda text: text.replace(" %", "\N{NO-BREAK SPACE}%")
    report = document(summary)
    with ink.style():
        drawn = {
            section.key: [
                chart for make in _CHARTS.get(section.key, ()) for chart in make(summary, section)
            ]
            for section in report.sections
        }
    return (
        environment.from_string(template).render(
            report=report, charts=drawn, tiles=tiles(summary), raw=Markup, result=summary.result
        )
        + "\n"
    )


def tiles(summary: Summary) -> list[tuple[str, str, str]]:
    """The figures that everybody wants first: figure, what it is, and a remark."""
    hero = summary.hero
    if hero is None:
        return []
    found = []
    if hero.speedup is not None:
        over = f"over {summary.label(summary.result.reference)}"
        found.append((times(hero.speedup.value), over, f"95 %: {interval(hero.speedup)}"))
    if summary.over_hf is not None:
        over = f"over {summary.label(summary.hf)}"
        found.append((times(summary.over_hf.value), over, f"95 %: {interval(summary.over_hf)}"))
    width = f"{hero.width:.1f} fed per step" if hero.width else ""
    found.append((f"{hero.tokens_per_step:.2f}", "tokens per step", width))
    found.append((decimal(hero.tokens_per_second), "tokens per second", "behind the first"))
    if hero.compared:
        remark = "token for token" if hero.equal == hero.compared else "see lade verify"
        found.append((equality_cell(hero), "equal answers", remark))
    return found
