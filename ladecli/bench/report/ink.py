"""Matplotlib's figures as SVG inside a page: its text, its colours by name, the same each time."""

from __future__ import annotations

import contextlib
import io
import re
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH = 3.75
"""Inches of a chart: on a phone, its smallest text is then as large as a footnote."""
TEXT, FAINT, LINE, CARD = "#010203", "#010204", "#010205", "#010206"
"""Stand for colours that the page knows: matplotlib takes numbers only."""
SERIES = tuple(f"#0103{number:02x}" for number in range(8))
"""The first one is the reference's, the second the hero's."""
MARKERS = "osD^vPXp"
"""Shapes, so that colours are not all that tells series apart."""
DASHES = ("-", "-", "--", "-.", ":", "--", "-.", ":")

_MARK, _LETTER, _ROW = 0.45, 0.068, 0.18
"""Inches of a legend: of the mark and the gaps beside a name, a letter's width, a row's height."""
_NAMES = {TEXT: "currentColor", FAINT: "var(--faint)", LINE: "var(--line)", CARD: "var(--card)"}
_NAMES |= {colour: f"var(--s{number})" for number, colour in enumerate(SERIES)}
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none", "svg.hashsalt": "lade", "text.parse_math": False,
    "font.size": 9, "axes.titlesize": 9, "axes.labelsize": 8.5, "legend.fontsize": 8.5,
    "xtick.labelsize": 8.5, "ytick.labelsize": 8.5,
    "text.color": TEXT, "axes.labelcolor": FAINT, "axes.edgecolor": LINE, "axes.titlecolor": TEXT,
    "xtick.color": LINE, "ytick.color": LINE, "xtick.labelcolor": FAINT, "ytick.labelcolor": FAINT,
    "axes.facecolor": "none", "figure.facecolor": "none", "savefig.facecolor": "none",
    "axes.spines.top": False, "axes.spines.right": False, "axes.linewidth": 0.8,
    "axes.grid": True, "axes.axisbelow": True, "grid.color": LINE, "grid.linewidth": 0.6,
    "grid.alpha": 1.0, "legend.frameon": False, "lines.linewidth": 1.6, "lines.markersize": 4.5,
    "axes.formatter.min_exponent": 3, "axes.formatter.useoffset": False,
}  # fmt: skip


@contextlib.contextmanager
def style() -> Iterator[None]:
    """Within this, figures are drawn in the page's style, whatever a user's own settings are."""
    import matplotlib

    with warnings.catch_warnings(), matplotlib.rc_context():
        # The browser's fonts draw the text; what matplotlib's own lack is no loss.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        matplotlib.rcdefaults()
        for name, value in _STYLE.items():
            matplotlib.rcParams[name] = value
        yield


def canvas(height: float, width: float = WIDTH) -> tuple[Figure, Axes]:
    """A figure of so many inches, and its axes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots()


def legend(figure: Figure, axes: Axes, columns: int = 2) -> None:
    """Names of the series below a chart, if there are several.

    Args:
        figure: which grows by the rows that long names take more.
        axes: with the series.
        columns: as many as short names have.
    """
    handles, names = axes.get_legend_handles_labels()
    if len(names) < 2:
        return
    room = _MARK + _LETTER * max(map(len, names))
    fit = max(min(columns, int(figure.get_figwidth() / room)), 1)
    more = -(-len(names) // fit) - -(-len(names) // columns)
    figure.set_figheight(figure.get_figheight() + more * _ROW)
    figure.legend(handles, names, loc="outside lower center", ncols=fit, handlelength=1.8)


def plain_numbers(axes: Axes, which: str, base: int = 10) -> None:
    """Ticks of logarithmic axes as numbers that people read, and few of them."""
    from matplotlib.ticker import LogLocator, NullLocator

    for axis in (getattr(axes, f"{letter}axis") for letter in which):
        low, high = axis.get_view_interval()
        between = (1, 2, 5) if base == 10 and 0 < high < 30 * low else (1,)
        axis.set_major_locator(LogLocator(base, subs=between))
        axis.set_major_formatter(lambda x, _: f"{x:,.10g}")
        axis.set_minor_locator(NullLocator())


def as_svg(figure: Figure, name: str, alt: str) -> str:
    """A figure as an element of a page.

    Args:
        figure: made within `style`.
        name: of the chart, unique in the page: names inside it begin with that.
        alt: what it shows, for those who cannot see it; plain text.
    """
    from html import escape

    drawn = io.StringIO()
    metadata = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    figure.savefig(drawn, format="svg", metadata=metadata)
    text = drawn.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, flags=re.S)
    # `<svg …>` itself: as wide as there is room for, and named.
    box = re.search(r'viewBox="([^"]*)"', text)
    assert box is not None
    body = text[text.index(">") + 1 :]
    body = _markup(body, name)
    return (
        f'<svg class="chart" viewBox="{box[1]}" role="img" aria-label="{escape(alt)}">'
        f"{body.strip()}"
    )


def _markup(body: str, name: str) -> str:
    """What is between the tags of the element, fit for a page with other charts in it.

    Only tags are changed: the same words may stand in the user's names.
    """

    def changed(tag: re.Match[str]) -> str:
        text = tag[0]
        text = re.sub(r'\bid="', f'id="{name}-', text)
        text = re.sub(r'(?:xlink:)?href="#', f'href="#{name}-', text)
        text = text.replace("url(#", f"url(#{name}-")
        text = re.sub(r"font: ([\d.]+)px [^;\"]*", r"font-size: \1px", text)
        text = re.sub(r"font-family: [^;\"]*;? ?", "", text)
        for colour, known in _NAMES.items():
            text = text.replace(colour, known)
        return text

    body = re.sub(r"<!--.*?-->\s*", "", body, flags=re.S)  # every text is there twice else
    return re.sub(r"<[^>]*>", changed, body)
