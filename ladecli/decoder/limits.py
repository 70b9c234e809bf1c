"""Where a generation ends, whatever the strategy: applied once, when tokens are committed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .errors import ConfigError
from .events import FinishReason, Token


@dataclass(frozen=True, slots=True)
class Limits:
    """Where a generation ends.

    Attributes:
        max_new_tokens: the most tokens; None for as many as the context holds.
        stop_ids: ids that end the text; the id itself is committed.
        should_stop: called with every token at commit, in order; true ends the text with
            that token, and tokens after it are dropped.
    """

    max_new_tokens: int | None = None
    stop_ids: frozenset[int] = frozenset()
    should_stop: Callable[[int], bool] | None = None

    def __post_init__(self) -> None:
        if self.max_new_tokens is not None and self.max_new_tokens < 0:
            raise ConfigError(f"max-new-tokens must be 0 or more, not {self.max_new_tokens}")


def cut(
    tokens: tuple[Token, ...], length: int, end: int, limits: Limits
) -> tuple[tuple[Token, ...], FinishReason | None]:
    """The tokens up to the one that ends the text, and why it ended, if it did.

    Args:
        tokens: what a step yielded.
        length: of the text before them.
        end: of the text at the latest.
        limits: where to end; `should_stop` is called with every token that stays.
    """
    for count, token in enumerate(tokens, start=1):
        stop = limits.should_stop is not None and limits.should_stop(token.id)
        if token.id in limits.stop_ids:
            return tokens[:count], "eos"
        if stop:
            return tokens[:count], "stop"
        if length + count >= end:
            return tokens[:count], "length"
    return tokens, None
