"""The sources of drafts by name.  A new one is a file beside these and a row below."""

from __future__ import annotations

from .context import ContextSource
from .recycled import RecycledSource
from .source import Source
from .trajectory import TrajectorySource

SOURCES: dict[str, type[Source]] = {
    "trajectory": TrajectorySource,
    "context": ContextSource,
    "recycled": RecycledSource,
}
"""In the order in which they learn from a step.  Newer counts outweigh older ones, so accepted text
comes after the n-grams of the window, which are worse evidence."""
