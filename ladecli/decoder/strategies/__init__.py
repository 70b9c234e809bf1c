"""Strategies plug into the loop: they propose drafts and observe what became of them.

They never touch the cache, the tokenizer or the screen.  `Autoregressive` proposes nothing:
it is plain decoding, and the oracle that every other strategy is tested against.
"""

from __future__ import annotations

from ..config import STRATEGIES, LookaheadConfig
from ..draft_state import DraftState
from ..errors import ConfigError
from ..observation import Observation
from .autoregressive import Autoregressive
from .base import State, Strategy
from .jacobi import Jacobi
from .lookahead import Lookahead
from .prompt_lookup import PromptLookup

__all__ = ["Observation", "State", "Strategy", "make_strategy"]


def make_strategy(name: str, config: LookaheadConfig, drafts: DraftState | None = None) -> Strategy:
    """A fresh strategy for one generation.

    Args:
        name: one of `config.STRATEGIES`.
        config: settings of lookahead; other strategies take from it what they know.
        drafts: for lookahead, what earlier generations learned; None to start with nothing.

    Raises:
        ConfigError: there is no strategy of this name.
    """
    match name:
        case "lookahead":
            return Lookahead(config, drafts)
        case "autoregressive":
            return Autoregressive()
        case "jacobi":
            return Jacobi(config)
        case "prompt-lookup":
            return PromptLookup(config)
    raise ConfigError(f"unknown strategy {name!r}; known strategies: {', '.join(STRATEGIES)}")
