"""The one definition of every figure: interface, benchmark and tests call these."""

from __future__ import annotations

import statistics
from collections import Counter, deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

from .decoder.events import PromptRead, Started, StepNarrowed
from .errors import counted
from .events import Ended, Reason, TextEvent, TextStep, pieces_of


def ratio(numerator: float, denominator: float) -> float:
    """A quotient that is 0 where there is nothing to divide by."""
    return numerator / denominator if denominator else 0.0


def first_difference(ids: Sequence[int], others: Sequence[int]) -> int | None:
    """The index of the first token in which two texts differ; None where they are equal."""
    pairs = enumerate(zip_longest(ids, others))
    return next((index for index, (one, other) in pairs if one != other), None)


PLAIN_STEPS = 8
"""Steps of one token that an answer needs before their mean stands for a plain step."""
_LATEST = 500
"""Steps of which a mean is taken, so that its cost does not grow with the text."""
RECENT = 24
"""Last steps that are kept one by one."""
_SUMMED = (
    *("prompt", "cached", "tokens", "steps", "fed", "prefill_seconds", "decode_seconds"),
    *("plain_seconds", "derived_seconds", "accepted", "_first_tokens"),
)
"""Of a tally, what those of several answers add up to, or are joined."""


@dataclass(slots=True)
class Tally:
    """One answer and its counts, folded from its events.

    A step is a forward pass that yields tokens.  The first one reads the end of the prompt
    and belongs to the prefill time; all others are decoding time.  A step that ran out of memory
    counts as time, too.
    """

    prompt: int = 0  # its tokens
    cached: int = 0  # tokens of the prompt that were in the cache already
    read: int = 0  # tokens of the prompt that are in the cache before the first step
    tokens: int = 0  # of the answer
    steps: int = 0
    fed: int = 0  # tokens fed to the model by all steps
    prefill_seconds: float = 0.0  # wall time, as are `decode_seconds`
    decode_seconds: float = 0.0
    # Of the latest steps that fed one token, as all of plain decoding do.
    plain_seconds: deque[float] = field(default_factory=lambda: deque(maxlen=_LATEST))
    # What the other ones say of a plain step: their time over their cost.
    derived_seconds: deque[float] = field(default_factory=lambda: deque(maxlen=_LATEST))
    # Tokens and seconds of the last steps, the newest last.
    recent: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=RECENT))
    accepted: Counter[str] = field(default_factory=Counter)  # draft tokens by source
    step_limit: int | None = None  # the most tokens of a step after memory ran out
    reason: Reason | None = None  # why the answer ended
    # By how much a plain step is longer than those derived from wider steps, as measured in an
    # earlier answer; None if that is unknown.
    calibration: float | None = None
    token_ids: list[int] = field(default_factory=list)
    _texts: list[str] = field(default_factory=list)
    _reasoning: list[str] = field(default_factory=list)
    _first_tokens: int = 0

    def add(self, event: TextEvent) -> None:
        """Count one more event."""
        for piece in pieces_of(event):
            self._texts.append(piece.text)
            self._reasoning.append(piece.reasoning)
        match event:
            case Started():
                self.prompt, self.cached, self.read = event.total, event.cached, event.cached
            case PromptRead():
                self.prefill_seconds += event.seconds
                self.read = event.done
            case TextStep():
                if self.steps == 0:
                    self.prefill_seconds += event.seconds
                    self._first_tokens = len(event.token_ids)
                else:
                    self.decode_seconds += event.seconds
                    if event.width == 1:
                        self.plain_seconds.append(event.seconds)
                    elif event.cost is not None:
                        self.derived_seconds.append(event.seconds / event.cost)
                    self.recent.append((len(event.token_ids), event.seconds))
                self.steps += 1
                self.tokens += len(event.token_ids)
                self.fed += event.width
                self.token_ids += event.token_ids
                self.accepted.update(piece.source for piece in event.pieces if piece.source)
            case StepNarrowed():
                self.step_limit = event.width
                if self.steps == 0:
                    self.prefill_seconds += event.seconds
                else:
                    self.decode_seconds += event.seconds
            case Ended():
                self.reason = event.reason

    @property
    def text(self) -> str:
        """The answer, as far as it is certain."""
        return "".join(self._texts)

    @property
    def reasoning(self) -> str:
        """What the model thought before its answer, as far as it is certain."""
        return "".join(self._reasoning)

    @property
    def unanswered(self) -> bool:
        """Whether there is reasoning, and no answer after it."""
        return bool(self.reasoning.strip()) and not self.text.strip()

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

    @property
    def measured(self) -> bool:
        """Whether the time of a plain step was measured, in this answer or for `calibration`."""
        return len(self.plain_seconds) >= PLAIN_STEPS or self.calibration is not None

    @property
    def plain_step(self) -> float | None:
        """Seconds of a plain step after a text as long as this one, on a machine as busy as it was;
        None if unknown.

        The mean of this answer's own plain steps, or where it has too few, of what all steps say.
        """
        if len(self.plain_seconds) >= PLAIN_STEPS:
            return _trimmed_mean(self.plain_seconds)
        scale = self.calibration or 1.0
        return _trimmed_mean(
            [*self.plain_seconds, *(each * scale for each in self.derived_seconds)]
        )

    @property
    def out_of_memory(self) -> str | None:
        """What to say of memory below the answer; None if there was enough."""
        if self.reason == "memory":
            context = counted(self.prompt + self.tokens, "token")
            return (
                f"out of memory after {context} of context; a smaller --max-context,"
                " --quantize 4bit or a smaller model helps"
            )
        if self.step_limit is not None:
            return (
                f"out of memory: steps have at most {counted(self.step_limit, 'token')} now; a"
                " smaller --budget avoids this"
            )
        return None

    def calibrate(self) -> float | None:
        """The `calibration` that this answer's own steps give, or else the one that it had."""
        derived = _trimmed_mean(self.derived_seconds)
        if len(self.plain_seconds) < PLAIN_STEPS or derived is None:
            return self.calibration
        return (self.plain_step or 0.0) / derived

    @property
    def speedup(self) -> float:
        """Plain decoding's time over that of this answer, after the first step; 0 if unknown."""
        tokens = self.tokens - self._first_tokens
        return self._speedup(tokens, self.decode_seconds, self.tokens_per_step)

    @property
    def speedup_from(self) -> str | None:
        """How `speedup` is known; None where it is not."""
        return ("measured" if self.measured else "estimated") if self.speedup else None

    def speedup_of_last(self, steps: int) -> float:
        """The same of the last steps."""
        last = list(self.recent)[-steps:]
        tokens, seconds = sum(count for count, _ in last), sum(each for _, each in last)
        return self._speedup(tokens, seconds, ratio(tokens, len(last)))

    def _speedup(self, tokens: int, seconds: float, most: float) -> float:
        # A step is no faster than a plain one: where it seems so, that is noise.
        return min(ratio(tokens * (self.plain_step or 0.0), seconds), most)


def _trimmed_mean(seconds: Collection[float]) -> float | None:
    """The mean without the fastest and the slowest tenth: one pause of the machine must not change
    the figure.  None of nothing."""
    if not seconds:
        return None
    cut = -(-len(seconds) // 10) if len(seconds) > 2 else 0
    return statistics.fmean(sorted(seconds)[cut : len(seconds) - cut])


def total(tallies: Iterable[Tally]) -> Tally:
    """The counts of several answers as if they were one, which has no text."""
    whole = Tally()
    for tally in tallies:
        for name in _SUMMED:
            setattr(whole, name, getattr(whole, name) + getattr(tally, name))
        whole.calibration = tally.calibrate() or whole.calibration
    return whole
