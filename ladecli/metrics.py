"""The one definition of every figure: interface, benchmark and tests call these."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from .decoder.events import Started, StepNarrowed
from .events import Ended, PromptRead, Reason, TextEvent, TextStep


def ratio(numerator: float, denominator: float) -> float:
    """A quotient that is 0 where there is nothing to divide by."""
    return numerator / denominator if denominator else 0.0


def step_speedup(tokens: int, seconds: float, plain_step: float, *, drafted: bool) -> float:
    """How many times as fast `tokens` came as plain decoding would have made them.

    Args:
        tokens: what came.
        seconds: in how much time.
        plain_step: seconds that a step of plain decoding takes, which makes one token.
        drafted: whether a draft was among them.  Without one every step made one token, as a
            plain one does, and what made it faster than that is noise: the result is 1 at most.
    """
    faster = ratio(tokens * plain_step, seconds)
    return faster if drafted else min(faster, 1.0)


@dataclass(slots=True)
class Tally:
    """Counts over one answer, folded from its events.

    A step is a forward pass that yields tokens.  The first one reads the end of the prompt
    and belongs to the prefill time; all others are decoding time.  What memory did not suffice
    for counts as time, too.

    Attributes:
        prompt, cached: tokens of the prompt, and how many of them need not be read again.
        tokens: of the answer.
        steps: how many there were.
        fed: tokens that they fed to the model.
        prefill_seconds, decode_seconds: wall time.
        accepted: draft tokens by source.
        squeezed: the most tokens of a step for want of memory; None if there was enough.
        reason: why the answer ended; None before that.
    """

    prompt: int = 0
    cached: int = 0
    tokens: int = 0
    steps: int = 0
    fed: int = 0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    accepted: Counter[str] = field(default_factory=Counter)
    squeezed: int | None = None
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
            case StepNarrowed():
                self.squeezed = event.width
                if self.steps == 0:
                    self.prefill_seconds += event.seconds
                else:
                    self.decode_seconds += event.seconds
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

    def speedup(self, plain_step: float) -> float:
        """How many times as fast as plain decoding, after the first step; 0 before the second.

        Args:
            plain_step: seconds that a step of plain decoding takes.
        """
        return step_speedup(
            self.tokens - self._first_tokens,
            self.decode_seconds,
            plain_step,
            drafted=self.tokens > self.steps,
        )


def total(tallies: Iterable[Tally]) -> Tally:
    """The counts of several answers as if they were one."""
    whole = Tally()
    for tally in tallies:
        whole.prompt += tally.prompt
        whole.cached += tally.cached
        whole.tokens += tally.tokens
        whole.steps += tally.steps
        whole.fed += tally.fed
        whole.prefill_seconds += tally.prefill_seconds
        whole.decode_seconds += tally.decode_seconds
        whole.accepted.update(tally.accepted)
        whole._first_tokens += tally._first_tokens
    return whole
