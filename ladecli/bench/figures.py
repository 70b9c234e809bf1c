"""Names of `statistics` that `bench compare` imports."""

from .statistics import CONFIDENCE, Interval

__all__ = ["CONFIDENCE", "Interval"]
