"""lade: exact, fast decoding of large language models, without a draft model.

    import ladecli

    model = ladecli.load("demo")
    print(model.generate("def "))

`load` returns a `Model` that streams events or generates text; `lookahead` is for transformers'
`model.generate(..., custom_generate=ladecli.lookahead)`.  Names are imported when they are first
used, so that importing this package costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .api import Model as Model
    from .api import load as load
    from .custom_generate import lookahead as lookahead
    from .decoder.config import LookaheadConfig as LookaheadConfig
    from .decoder.config import SamplingConfig as SamplingConfig
    from .decoder.errors import ConfigError as ConfigError
    from .decoder.errors import DecoderError as DecoderError
    from .decoder.errors import Error as Error
    from .decoder.errors import PromptError as PromptError
    from .decoder.errors import UnsupportedModelError as UnsupportedModelError
    from .decoder.events import PromptRead as PromptRead
    from .errors import LadeError as LadeError
    from .errors import LoadError as LoadError
    from .errors import UsageError as UsageError
    from .events import Ended as Ended
    from .events import Piece as Piece
    from .events import TextStep as TextStep

__version__ = "0.1.0"

_NAMES = {
    "api": ("Model", "load"),
    "custom_generate": ("lookahead",),
    "decoder.config": ("LookaheadConfig", "SamplingConfig"),
    "decoder.errors": (
        *("ConfigError", "DecoderError", "Error", "PromptError", "UnsupportedModelError"),
    ),
    "decoder.events": ("PromptRead",),
    "errors": ("LadeError", "LoadError", "UsageError"),
    "events": ("Ended", "Piece", "TextStep"),
}
_HOME = {name: module for module, names in _NAMES.items() for name in names}
__all__ = sorted(["__version__", *_HOME])


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_HOME[name]}", __name__), name)


def __dir__() -> list[str]:
    return __all__
