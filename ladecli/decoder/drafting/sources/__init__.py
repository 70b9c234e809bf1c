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
"""In the order in which they learn from a step: accepted text comes after the window's n-grams,
since it is the better evidence of the two and the newest outweighs."""
