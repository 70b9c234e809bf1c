"""Figures as text: the same in reports, in comparisons and in every format of both."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

from ..memory import told
from ..screen import NONE
from ..visualize import printable
from .axes import LONG
from .result import PLAIN, STOCK, STOCK_COMPILED, STOCK_LOOKUP, Method
from .statistics import Interval

_LABELS = {
    PLAIN: "plain decoding",
    STOCK: "transformers' generate",
    STOCK_LOOKUP: "transformers' prompt lookup",
    STOCK_COMPILED: "transformers' compiled generate",
}
_NOT_XML = re.compile("[\ud800-\udfff\ufffe\uffff]")


def clean(text: str) -> str:
    """Text of the user's or of a model's, on one line and without control characters."""
    one_line = " ".join(text.split())
    return _NOT_XML.sub("\N{REPLACEMENT CHARACTER}", printable(one_line)).strip()


def label(method: Method) -> str:
    """What a method is called in tables and sentences."""
    named = _LABELS.get(method.name) if method.name == method.strategy else None
    return named or clean(method.name)


def decimal(value: float | None, digits: int = 3) -> str:
    """A number with `digits` significant digits, never in powers of ten."""
    if value is None or not math.isfinite(value):
        return NONE
    if value == 0.0:
        return "0"
    places = max(digits - 1 - math.floor(math.log10(abs(value))), 0)
    return f"{value:,.{places}f}"


def times(value: float | None) -> str:
    """A factor: "1.52×"."""
    return NONE if value is None else f"{value:.2f}×"


def interval(found: Interval | None) -> str:
    """The bounds of a factor: "1.47 to 1.58"."""
    return NONE if found is None else f"{found.low:.2f} to {found.high:.2f}"


def milliseconds(seconds: float | None) -> str:
    """A duration in milliseconds, without the unit."""
    return NONE if seconds is None else decimal(seconds * 1e3)


def memory(count: float | None) -> str:
    """An amount of memory: "312 MB"."""
    return NONE if count is None else told(count)


def share(part: float) -> str:
    """A part of a whole: "12 %"; small ones keep a digit."""
    percent = 100 * part
    return f"{percent:.0f} %" if percent >= 9.5 or percent == 0 else f"{percent:.1f} %"


def settings(given: Mapping[str, int | str]) -> str:
    """Settings of a method: "W=7 N=5 G=7, budget 60, trajectory"."""
    shape = " ".join(f"{letter}={given[key]}" for key, letter in LONG.items() if key in given)
    rest = [f"{key} {value}" for key, value in given.items() if key not in {*LONG, "sources"}]
    sources = [str(given["sources"])] if "sources" in given else []
    return clean(", ".join(part for part in (shape, *rest, *sources) if part)) or NONE


def listed(names: Sequence[str]) -> str:
    """Names in a sentence: "a, b and c"."""
    if len(names) < 2:
        return "".join(names)
    return f"{', '.join(names[:-1])} and {names[-1]}"


def listed_some(names: Sequence[str], most: int) -> str:
    """The first names, and the number of the others: "a, b and 3 more"."""
    if len(names) <= most:
        return listed(names)
    return f"{', '.join(names[:most])} and {len(names) - most:,} more"
