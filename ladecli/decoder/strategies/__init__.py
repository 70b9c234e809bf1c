"""The strategies by name."""

from __future__ import annotations

from ..config import STRATEGIES, LookaheadConfig
from ..drafting.store import DraftStore
from ..errors import ConfigError
from ..strategy import Strategy
from .baselines import Jacobi, PromptLookup
from .lookahead import Lookahead
from .paper import PaperLookahead


def make_strategy(name: str, config: LookaheadConfig, store: DraftStore | None = None) -> Strategy:
    """Make a strategy for one generation.

    Args:
        name: one of `config.STRATEGIES`.
        config: settings of lookahead, some of which other strategies use.
        store: for lookahead, what earlier generations learned; None for an empty store.

    Raises:
        ConfigError: there is no strategy of this name.
    """
    match name:
        case "lookahead" if config.sources == ("trajectory",):
            return PaperLookahead(config, store or DraftStore())
        case "lookahead":
            return Lookahead(config, store or DraftStore())
        case "autoregressive":
            return Strategy()
        case "jacobi":
            return Jacobi(config)
        case "prompt-lookup":
            return PromptLookup(config)
    raise ConfigError(f"unknown strategy {name!r}; known strategies: {', '.join(STRATEGIES)}")
