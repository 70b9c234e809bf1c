"""Models as a table: in the columns of a terminal, or one line each for a pipe."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.cells import cell_len
from rich.text import Text

from ..cells import cropped, padded, styled, wrapped
from ..memory import told
from ..profiles.user import short
from ..visualize import printable
from .model import Model

_HEADS = ("model", "size", "params", "type", "dtype", "ctx", "fits", "lookahead")
_RIGHT = frozenset({1, 2, 5})
_GAP = "  "
_INDENT = "    "
_UNKNOWN = "-"
_SHORT = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "float64": "fp64"}
_STYLES = {"yes": "green", "no": "red", "untested": "yellow"}


def table(models: Sequence[Model], width: int | None) -> Iterator[Text]:
    """The lines of the table, with a head.

    Args:
        models: in order.
        width: of the terminal in cells; a name that leaves no room for the figures gets a line of
            its own there, and notes go below.  None for a pipe: one line for each model.
    """
    rows = [_HEADS, *map(_row, models)]
    widths = [max(cell_len(row[column]) for row in rows) for column in range(len(_HEADS))]
    if width is not None:
        figures = sum(widths[1:]) + len(_GAP) * (len(widths) - 1)
        widths[0] = max(min(widths[0], width - figures), cell_len(_HEADS[0]))
    yield _line(_HEADS, widths, "bold")
    for model, row in zip(models, rows[1:], strict=True):
        notes = "; ".join(printable(note) for note in model.notes)
        if width is None:
            yield _line(row, widths).append(f"{_GAP}{notes}" if notes else "")
            continue
        if cell_len(row[0]) > widths[0]:
            yield Text(row[0])
            row = ("", *row[1:])
        yield _line(row, widths)
        for line in wrapped(Text(notes), max(width - len(_INDENT), 20)) if notes else ():
            yield styled(_INDENT + line.plain.strip(), "dim")


def _line(row: Sequence[str], widths: Sequence[int], style: str = "") -> Text:
    line = Text()
    for column, (cell, width) in enumerate(zip(row, widths, strict=True)):
        last = column == len(row) - 1
        text = styled(cell, style or (_STYLES.get(cell, "") if last else ""))
        if column in _RIGHT:
            line.append(" " * max(width - text.cell_len, 0)).append_text(text)
        else:
            line.append_text(text if last else padded(text, width))
        line.append("" if last else _GAP)
    return line


def _row(model: Model) -> tuple[str, ...]:
    lookahead = {None: _UNKNOWN, False: "no"}.get(model.supported)
    return (
        printable(model.name),
        told(model.size_bytes),
        _UNKNOWN if model.parameters is None else short(model.parameters),
        cropped(Text(printable(model.family) or _UNKNOWN), 11).plain,
        _type(model.dtype),
        _context(model.context),
        _fits(model),
        lookahead or ("yes" if model.tested else "untested"),
    )


def _type(dtype: str) -> str:
    """A type of weights, or a method of quantisation without its bits."""
    name = _SHORT.get(dtype, dtype.split(" ")[0])
    return cropped(Text(printable(name) or _UNKNOWN), 8).plain


def _fits(model: Model) -> str:
    if model.fits is not None:
        return _SHORT.get(model.fits, model.fits)
    return _UNKNOWN if model.needs_bytes is None else "no"


def _context(tokens: int | None) -> str:
    """A number of tokens: 2048, 32k for 32768."""
    if tokens is None:
        return _UNKNOWN
    if tokens < 10_000:
        return str(tokens)
    return f"{tokens // 1024}k" if tokens % 1024 == 0 else f"{round(tokens / 1000)}k"
