"""The definitions of all figures, for the user interface, benchmarks and tests."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

from .decoder.events import PromptRead, Started, StepNarrowed
from .errors import counted
from .events import Ended, Reason, TextEvent, TextStep, pieces_of


def ratio(numerator: float, denominator: float) -> float:
    """Return a quotient, or 0 if there is nothing to divide by."""
    return numerator / denominator if denominator else 0.0


def first_difference(ids: Sequence[int], others: Sequence[int]) -> int | None:
    """Return the index of the first token in which two texts differ; None if they are equal."""
    pairs = enumerate(zip_longest(ids, others))
    return next((index for index, (one, other) in pairs if one != other), None)


RECENT = 24
"""The number of last steps whose token counts are kept."""
_SUMMED = (
    *("prompt", "cached", "tokens", "steps", "fed", "prefill_seconds", "decode_seconds"),
    *("plain_seconds", "unknown", "drafted", "accepted", "_first_tokens"),
)
"""The counts that `total` adds up."""


@dataclass(slots=True)
class Tally:
    """The text and the counts of one answer, folded from its events.

    A step is a forward pass that yields tokens.  The first one reads the end of the prompt
    and belongs to the prefill time; all others are decoding time.  The time of a step that ran out
    of memory counts, too.
    """

    prompt: int = 0  # tokens of the prompt
    cached: int = 0  # tokens of the prompt that were in the cache already
    read: int = 0  # tokens of the prompt that are in the cache before the first step
    tokens: int = 0  # of the answer
    steps: int = 0
    fed: int = 0  # tokens fed to the model by all steps, with only the last token of the prompt
    prefill_seconds: float = 0.0  # wall time, as are `decode_seconds`
    decode_seconds: float = 0.0
    plain_seconds: float = 0.0  # decoding time of plain decoding, estimated by the costs of steps
    unknown: int = 0  # tokens of steps whose cost is not known
    drafted: int = 0  # tokens of steps that fed more than one
    recent: deque[int] = field(default_factory=lambda: deque(maxlen=RECENT))  # tokens by step
    accepted: Counter[str] = field(default_factory=Counter)  # draft tokens by source
    step_limit: int | None = None  # the most tokens of a step after memory ran out
    reason: Reason | None = None  # why the answer ended
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
                count = len(event.token_ids)
                self.fed += event.width
                if self.steps == 0:
                    self.fed -= max(self.prompt - self.read - 1, 0)  # tokens of the prompt
                    self.prefill_seconds += event.seconds
                    self._first_tokens = count
                else:
                    self.decode_seconds += event.seconds
                    self.recent.append(count)
                    # Steps become slower with the text, so each counts for its own tokens.
                    if event.width == 1:
                        self.plain_seconds += event.seconds
                    elif event.cost:
                        self.plain_seconds += event.seconds / event.cost * count
                    self.drafted += count if event.width > 1 else 0
                    self.unknown += count if event.width > 1 and not event.cost else 0
                self.steps += 1
                self.tokens += count
                self.token_ids += event.token_ids
                self.accepted.update([piece.source for piece in event.pieces if piece.source])
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
        """The reasoning before the answer, as far as it is certain."""
        return "".join(self._reasoning)

    @property
    def unanswered(self) -> bool:
        """True if there is reasoning, but no answer after it."""
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
    def cut(self) -> bool:
        """True if a limit ended the answer."""
        return self.reason in ("length", "context")

    @property
    def ended_well(self) -> bool:
        """True if the answer is complete or reached a limit, but was not interrupted and did not
        run out of memory."""
        return self.cut or self.reason in ("eos", "stop")

    @property
    def out_of_memory(self) -> str | None:
        """A line about a lack of memory; None if there was enough."""
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
        """Return the figures, named as in `lade generate --json`."""
        return {
            "steps": self.steps,
            "tokens_per_step": self.tokens_per_step,
            "tokens_per_second": self.tokens_per_second,
            "accepted": dict(sorted(self.accepted.items())),
            "speedup": self.speedup or None,
            "speedup_from": self.speedup_from,
            "seconds": {"prefill": self.prefill_seconds, "decode": self.decode_seconds},
        }

    @property
    def speedup(self) -> float:
        """Plain decoding's time over that of this answer, after the first step; 0 if unknown."""
        if self.unknown:
            return 0.0
        # No step is faster than a plain one, so a higher value is noise.
        return min(ratio(self.plain_seconds, self.decode_seconds), self.tokens_per_step)

    @property
    def measured(self) -> bool:
        """True if all steps were plain, so that `speedup` is not an estimate."""
        return not self.drafted

    @property
    def speedup_from(self) -> str | None:
        """ "measured" or "estimated", the origin of `speedup`; None if that is unknown."""
        return ("measured" if self.measured else "estimated") if self.speedup else None


def total(tallies: Iterable[Tally]) -> Tally:
    """Return the sums of the counts of several answers, without text."""
    whole = Tally()
    for tally in tallies:
        for name in _SUMMED:
            setattr(whole, name, getattr(whole, name) + getattr(tally, name))
    return whole
