"""The events of `Decoder.generate`: frozen values of ids, origins and seconds, without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

FinishReason: TypeAlias = Literal["eos", "stop", "length", "context", "memory"]


@dataclass(frozen=True, slots=True)
class Logprobs:
    """Log-probabilities at the place of a token, by the model's logits as they are: before
    temperature, filters, penalties and logits processors."""

    own: float  # of the token
    best: tuple[tuple[int, float], ...] = ()  # the most probable ids with theirs, best first


@dataclass(frozen=True, slots=True)
class Token:
    """One committed token."""

    id: int  # the token id
    source: str | None = None
    """The draft source whose guess was accepted ("trajectory", "context", …), or None for a token
    that the model chose at the end of a step."""
    logprobs: Logprobs | None = None  # where the caller asked for them


@dataclass(frozen=True, slots=True)
class Started:
    """A generation begins: of `total` prompt tokens, `cached` need not be read again."""

    cached: int
    total: int


@dataclass(frozen=True, slots=True)
class PromptRead:
    """A chunk of the prompt went into the cache; `done` of `total` tokens are in it now.

    The last chunk is part of the first step and has no event of its own.  A text that grows past
    the boundary of its rotary frequencies is read again, by chunks of all of it.
    """

    done: int
    total: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Detail:
    """The candidates of a step, for display; made only if asked for."""

    current: int  # the token that the draft continued
    tree: tuple[int, ...] = ()  # tokens of the candidate tree; parents stand before their children
    parents: tuple[int, ...] = ()  # for each node its parent's index, or -1 for the current token
    sources: tuple[str, ...] = ()  # for each node the draft source that proposed it
    accepted: tuple[int, ...] = ()
    """Indices of the nodes that were committed, in the order of the text."""
    window: tuple[tuple[int, ...], ...] = ()
    """The rows of the lookahead window, the current token first; empty without one."""
    outputs: tuple[int, ...] = ()  # the model's token after each cell of the window's last row
    closed: bool = False  # whether these outputs close n-grams: not yet while the window fills

    @property
    def ngrams(self) -> tuple[tuple[int, ...], ...]:
        """The n-grams that this step closed, one for each column of the window."""
        return tuple(zip(*self.window, self.outputs, strict=True)) if self.closed else ()


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Seconds of the parts of a step: drafting and layout; the forward, and the choice of tokens,
    which waits for it; text and cache; what strategies learn from it."""

    draft: float
    forward: float
    commit: float
    learn: float


@dataclass(frozen=True, slots=True)
class Step:
    """One forward pass and the tokens that it yielded."""

    tokens: tuple[Token, ...]  # at least one; accepted draft tokens first
    width: int  # tokens fed to the model
    proposed: int  # draft tokens among them that stood for verification
    seconds: float
    """Wall time of the step, drafting and verification included.  The time that the reader of the
    text takes counts only where it overlaps with a captured step."""
    times: StepTimes  # where the seconds went
    detail: Detail | None = None  # what was tried, where the caller asked for it


@dataclass(frozen=True, slots=True)
class StepNarrowed:
    """Memory ran out in a step, which is tried again with fewer drafts."""

    width: int  # the most tokens of steps after the prompt from now on
    seconds: float  # wall time of the failed try


@dataclass(frozen=True, slots=True)
class Finished:
    """The end: an end token, the caller's stop, the length asked for, a full context, or no
    memory for a plain step.
    """

    reason: FinishReason


Event: TypeAlias = Started | PromptRead | Step | StepNarrowed | Finished
