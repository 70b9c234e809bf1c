"""Strategies propose drafts and observe what became of them.

They never touch the cache, the tokenizer or the screen.
"""

from __future__ import annotations

from ..config import STRATEGIES, LookaheadConfig
from ..drafting.memory import DraftMemory
from ..errors import ConfigError
from .base import Strategy
from .jacobi import Jacobi
from .lookahead import Lookahead
from .prompt_lookup import PromptLookup

__all__ = ["Strategy", "make_strategy"]


def make_strategy(
    name: str, config: LookaheadConfig, memory: DraftMemory | None = None
) -> Strategy:
    """A fresh strategy for one generation.

    Args:
        name: one of `config.STRATEGIES`.
        config: settings of lookahead, some of which other strategies use.
        memory: for lookahead, what earlier generations learned; None for nothing.

    Raises:
        ConfigError: there is no strategy of this name.
    """
    match name:
        case "lookahead":
            return Lookahead(config, memory)
        case "autoregressive":
            return Strategy()
        case "jacobi":
            return Jacobi(config)
        case "prompt-lookup":
            return PromptLookup(config)
    raise ConfigError(f"unknown strategy {name!r}; known strategies: {', '.join(STRATEGIES)}")
