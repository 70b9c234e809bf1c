"""The one definition of every figure: interface, benchmark and tests call these."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from .decoder.events import Started
from .events import Ended, PromptRead, Reason, TextEvent, TextStep


def ratio(numerator: float, denominator: float) -> float:
    """A quotient that is 0 where there is nothing to divide by."""
    return numerator / denominator if denominator else 0.0


@dataclass(slots=True)
class Tally:
    """Counts over one answer, folded from its events.

    A step is a forward pass that yields tokens.  The first one reads the end of the prompt
    and belongs to the prefill time; all others are decoding time.
    """

    prompt: int = 0
    cached: int = 0
    tokens: int = 0
    steps: int = 0
    fed: int = 0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    accepted: Counter[str] = field(default_factory=Counter)
    reason: Reason | None = None
    _first_tokens: int = 0

    def add(self, event: TextEvent) -> None:
        """Count one more event."""
        match event:
            case Started():
                self.prompt, self.cached = event.total, event.cached
            case PromptRead():
                self.prefill_seconds += event.seconds
            case TextStep():
                if self.steps == 0:
                    self.prefill_seconds += event.seconds
                    self._first_tokens = len(event.token_ids)
                else:
                    self.decode_seconds += event.seconds
                self.steps += 1
                self.tokens += len(event.token_ids)
                self.fed += event.width
                self.accepted.update(piece.source for piece in event.pieces if piece.source)
            case Ended():
                self.reason = event.reason

    @property
    def tokens_per_step(self) -> float:
        """Completion tokens over steps."""
        return ratio(self.tokens, self.steps)

    @property
    def step_width(self) -> float:
        """Mean number of tokens fed per step."""
        return ratio(self.fed, self.steps)

    @property
    def tokens_per_second(self) -> float:
        """Tokens after the first step over the time that they took.

        An answer of a single step has no such tokens; its rate is that of the step.
        """
        if self.decode_seconds:
            return (self.tokens - self._first_tokens) / self.decode_seconds
        return ratio(self.tokens, self.prefill_seconds)
