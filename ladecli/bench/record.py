"""Names of `result` that `bench compare` imports."""

from .result import as_object, read
from .result import to_json as text

__all__ = ["as_object", "read", "text"]
