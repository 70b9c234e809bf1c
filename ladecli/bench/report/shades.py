"""The colours of heat maps: one scale, readable without colours, and with few of them."""

from __future__ import annotations

from ...table import NONE
from .sweeps import Grid

LEVELS = ("#e8f1fa", "#c3dcf0", "#93c0e2", "#5b9dcd", "#2f76b3", "#155293", "#08306b")
"""From little to much: light to dark blue, which every kind of colour vision tells apart."""


def shade(value: float, grid: Grid) -> int:
    """The index of a figure's level; the middle one where all figures are the same."""
    low, high = grid.bounds
    if high <= low:
        return len(LEVELS) // 2
    return round((value - low) / (high - low) * (len(LEVELS) - 1))


def ink_on(level: int) -> str:
    """The colour of text that can be read on a level."""
    return "#ffffff" if level >= len(LEVELS) // 2 + 1 else "#10243a"


def best(grid: Grid) -> float:
    """The greatest figure."""
    return grid.bounds[1]


def text_of(value: float | None, grid: Grid) -> str:
    """A figure of a grid with its unit."""
    return NONE if value is None else f"{value:.2f}{grid.unit}"
