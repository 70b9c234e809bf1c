"""The one definition of every figure: interface, benchmark and tests call these."""

from __future__ import annotations

import statistics
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, field
from itertools import zip_longest
from typing import Any, NamedTuple

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
"""Plain steps that an answer needs before it says itself what one takes."""
_LATEST = 500
"""Comparisons that count, so that their cost does not grow with the text."""
RECENT = 24
"""Last steps that are kept one by one."""
_SUMMED = (
    *("prompt", "cached", "tokens", "steps", "fed", "prefill_seconds", "decode_seconds"),
    *("plain", "accepted", "_compared", "_first_tokens"),
)
"""Of a tally, what those of several answers add up to, or are joined."""


class TimedStep(NamedTuple):
    """A step after the first one."""

    tokens: int
    seconds: float
    plain: bool
    """Whether it fed one token, as all of plain decoding do."""
    cost: float | None
    """In plain steps after the same text; None where it is not known."""

    @property
    def plain_seconds(self) -> float | None:
        """Of a plain step after the same text."""
        if self.plain:
            return self.seconds
        return None if self.cost is None else self.seconds / self.cost


@dataclass(slots=True)
class PlainTime:
    """What steps say of plain decoding's time for the same tokens.

    A plain step takes longer the longer the text is.  So each step speaks for its own tokens: their
    time is its own over its cost, for each of them.
    """

    steps: int = 0  # plain ones
    seconds: float = 0.0  # that these took
    drafted: int = 0  # tokens of others
    derived: float = 0.0  # the time of these, by the costs of their steps
    unknown: int = 0  # tokens of steps whose cost is not known

    def add(self, step: TimedStep) -> None:
        """Add what a step says."""
        seconds = step.plain_seconds
        if step.plain:
            self.steps += 1
            self.seconds += step.seconds
        elif seconds is not None:
            self.drafted += step.tokens
            self.derived += step.tokens * seconds
        else:
            self.unknown += step.tokens

    def __add__(self, other: PlainTime) -> PlainTime:
        """What the steps of both say."""
        pairs = zip(astuple(self), astuple(other), strict=True)
        return PlainTime(*(one + more for one, more in pairs))


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
    fed: int = 0  # tokens fed to the model by all steps, without those of the prompt but its last
    prefill_seconds: float = 0.0  # wall time, as are `decode_seconds`
    decode_seconds: float = 0.0
    plain: PlainTime = field(default_factory=PlainTime)
    recent: deque[TimedStep] = field(default_factory=lambda: deque(maxlen=RECENT))
    accepted: Counter[str] = field(default_factory=Counter)  # draft tokens by source
    step_limit: int | None = None  # the most tokens of a step after memory ran out
    reason: Reason | None = None  # why the answer ended
    # By how much a plain step is longer than costs say of wider ones, as an earlier answer has
    # shown; None if that is unknown.
    calibration: float | None = None
    # The same by the latest steps, each beside those of the other kind shortly before.
    _compared: deque[float] = field(default_factory=lambda: deque(maxlen=_LATEST))
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
                self.fed += event.width
                if self.steps == 0:
                    self.fed -= max(self.prompt - self.read - 1, 0)  # what the prompt's end added
                    self.prefill_seconds += event.seconds
                    self._first_tokens = len(event.token_ids)
                else:
                    self.decode_seconds += event.seconds
                    count, plain = len(event.token_ids), event.width == 1
                    self._take(TimedStep(count, event.seconds, plain, event.cost))
                self.steps += 1
                self.tokens += len(event.token_ids)
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

    def _take(self, step: TimedStep) -> None:
        """Take a step after the first one."""
        beside = [each.plain_seconds for each in self.recent if each.plain != step.plain]
        others, own = [each for each in beside if each is not None], step.plain_seconds
        if others and own:
            other = statistics.median(others)
            self._compared.append(own / other if step.plain else other / own)
        self.plain.add(step)
        self.recent.append(step)

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
        """Mean number of tokens fed per step, of which plain decoding feeds one."""
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
        """Whether the time of plain steps was measured, in this answer or for `calibration`."""
        alone = not self.plain.drafted and self.plain.steps >= PLAIN_STEPS
        return alone or self.calibrate() is not None

    @property
    def cut(self) -> bool:
        """Whether it reached a limit, and is whole as far as it goes."""
        return self.reason in ("length", "context")

    @property
    def ended_well(self) -> bool:
        """Whether it is all that was asked for: neither interrupted nor out of memory."""
        return self.cut or self.reason in ("eos", "stop")

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

    def as_json(self) -> dict[str, Any]:
        """Return what the answer took, named as in `lade generate --json`."""
        return {
            "steps": self.steps,
            "tokens_per_step": self.tokens_per_step,
            "tokens_per_second": self.tokens_per_second,
            "accepted": dict(sorted(self.accepted.items())),
            "speedup": self.speedup or None,
            "speedup_from": self.speedup_from,
            "seconds": {"prefill": self.prefill_seconds, "decode": self.decode_seconds},
        }

    def calibrate(self) -> float | None:
        """The `calibration` that this answer's own steps give, or else the one that it had.

        By medians: one pause of the machine must not change it.
        """
        if min(self.plain.steps, len(self._compared)) < PLAIN_STEPS:
            return self.calibration
        return statistics.median(self._compared)

    def calibrate_by(self, plain: Tally) -> float | None:
        """The `calibration` with which `speedup` is what plain decoding of the same text took; None
        where there are too few steps of either kind."""
        time = ratio(self.tokens - self._first_tokens, plain.tokens_per_second)
        if min(plain.plain.steps, self.plain.drafted) < PLAIN_STEPS:
            return None
        return ratio(max(time - self.plain.seconds, 0.0), self.plain.derived) or None

    @property
    def speedup(self) -> float:
        """Plain decoding's time over that of this answer, after the first step; 0 if unknown."""
        return self._speedup(self.plain, self.decode_seconds, self.tokens_per_step)

    @property
    def speedup_from(self) -> str | None:
        """How `speedup` is known; None where it is not."""
        return ("measured" if self.measured else "estimated") if self.speedup else None

    def speedup_of_last(self, steps: int) -> float:
        """The same of the last steps."""
        last, plain = list(self.recent)[-steps:], PlainTime()
        for each in last:
            plain.add(each)
        tokens, seconds = sum(each.tokens for each in last), sum(each.seconds for each in last)
        return self._speedup(plain, seconds, ratio(tokens, len(last)))

    def _speedup(self, plain: PlainTime, seconds: float, most: float) -> float:
        derived = plain.derived * (self.calibrate() or 1.0)
        unknown = plain.unknown * ratio(self.plain.seconds, self.plain.steps)
        if plain.unknown and not unknown:
            return 0.0
        # A step is no faster than a plain one: where it seems so, that is noise.
        return min(ratio(plain.seconds + derived + unknown, seconds), most)


def total(tallies: Iterable[Tally]) -> Tally:
    """The counts of several answers as if they were one, which has no text."""
    whole = Tally()
    for tally in tallies:
        for name in _SUMMED:
            setattr(whole, name, getattr(whole, name) + getattr(tally, name))
        whole.calibration = tally.calibrate() or whole.calibration
    return whole
