"""lade: exact, fast decoding of large language models, without a draft model.

    import ladecli

    model = ladecli.load("demo")
    print(model.generate("def "))

`load` gives a `Model` that streams events or returns text; `lookahead` is a drop-in for
`model.generate(..., custom_generate=ladecli.lookahead)` of transformers.  Names are imported
when they are first used, so that importing this package costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .api import Model, load
    from .custom_generate import lookahead
    from .decoder.config import LookaheadConfig, SamplingConfig
    from .decoder.errors import (
        ConfigError,
        DecoderError,
        Error,
        PromptError,
        UnsupportedModelError,
    )
    from .decoder.events import PromptRead
    from .errors import LadeError, LoadError, UsageError
    from .events import Ended, Piece, TextStep

__version__ = "0.1.0"

__all__ = [
    "ConfigError",
    "DecoderError",
    "Ended",
    "Error",
    "LadeError",
    "LoadError",
    "LookaheadConfig",
    "Model",
    "Piece",
    "PromptError",
    "PromptRead",
    "SamplingConfig",
    "TextStep",
    "UnsupportedModelError",
    "UsageError",
    "__version__",
    "load",
    "lookahead",
]

_HOME = {
    "Model": "api",
    "load": "api",
    "lookahead": "custom_generate",
    "LookaheadConfig": "decoder.config",
    "SamplingConfig": "decoder.config",
    "ConfigError": "decoder.errors",
    "DecoderError": "decoder.errors",
    "Error": "decoder.errors",
    "PromptError": "decoder.errors",
    "UnsupportedModelError": "decoder.errors",
    "PromptRead": "decoder.events",
    "LadeError": "errors",
    "LoadError": "errors",
    "UsageError": "errors",
    "Ended": "events",
    "Piece": "events",
    "TextStep": "events",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_HOME[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted(__all__)
