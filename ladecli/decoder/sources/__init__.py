"""Draft sources: each turns what it observes into evidence for the n-gram model.

- `context`     the prompt and the accepted text, and the longest passage they repeat
- `trajectory`  the n-grams that the lookahead window closes
- `recycled`    successors that the model found probable wherever a step computed logits
"""

from __future__ import annotations

from .base import Source
from .context import ContextSource
from .recycled import RecycledSource
from .trajectory import TrajectorySource

__all__ = ["ContextSource", "RecycledSource", "Source", "TrajectorySource"]
