"""A name of `facts` that `lade verify` imports."""

from .facts import described

__all__ = ["described"]
