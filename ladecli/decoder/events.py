"""The events of `Decoder.generate`: frozen values, without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

FinishReason: TypeAlias = Literal["eos", "stop", "length", "context", "memory"]


@dataclass(frozen=True, slots=True)
class Logprobs:
    """Log-probabilities at the place of a token, from the model's own logits: before temperature,
    filters, penalties and logits processors."""

    own: float  # that of the token
    best: tuple[tuple[int, float], ...] = ()  # the most probable ids, best first, each with its own


@dataclass(frozen=True, slots=True)
class Token:
    """One committed token."""

    id: int  # the token id
    source: str | None = None
    """The draft source whose guess was accepted ("trajectory", "context", …), or None for a token
    that the model chose at the end of a step."""
    logprobs: Logprobs | None = None  # None unless the caller asked for them


@dataclass(frozen=True, slots=True)
class Started:
    """A generation begins: of `total` prompt tokens, `cached` need not be read again."""

    cached: int
    total: int


@dataclass(frozen=True, slots=True)
class PromptRead:
    """A chunk of the prompt went into the cache; `done` of `total` tokens are in it now.

    The last chunk is part of the first step and has no event.  If a text that grows past its rotary
    boundary is read again, there are events for the chunks of the whole text.
    """

    done: int
    total: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Detail:
    """The candidates of a step, for display; made only if asked for."""

    current: int  # the token that the draft continued
    tree: tuple[int, ...] = ()  # the token of each node of the tree, parents before children
    parents: tuple[int, ...] = ()  # the index of each node's parent, or -1 for the current token
    sources: tuple[str, ...] = ()  # the draft source that proposed each node
    accepted: tuple[int, ...] = ()
    """Indices of the nodes that were committed, in the order of the text."""
    window: tuple[tuple[int, ...], ...] = ()
    """The rows of the lookahead window, the current token first; empty without one."""
    outputs: tuple[int, ...] = ()  # the model's token after each cell of the window's last row
    closed: bool = False  # whether the outputs complete n-grams: not while the window fills

    @property
    def ngrams(self) -> tuple[tuple[int, ...], ...]:
        """The n-grams that this step completed, one for each column of the window."""
        return tuple(zip(*self.window, self.outputs, strict=True)) if self.closed else ()


@dataclass(frozen=True, slots=True)
class StepTimes:
    """The seconds of a step by its parts."""

    draft: float  # proposing a draft, and laying out the step
    forward: float  # the forward, and choosing tokens
    commit: float  # updating the text and the cache
    learn: float  # learning of the strategy


@dataclass(frozen=True, slots=True)
class Step:
    """One forward pass and the tokens that it yielded."""

    tokens: tuple[Token, ...]  # at least one; accepted draft tokens first
    width: int  # tokens fed to the model
    proposed: int  # the nodes of the tree among them
    seconds: float
    """Wall time of the step, drafting and verification included.  The time that the caller takes
    between events counts only if it overlaps with a captured step."""
    times: StepTimes  # the seconds by part
    detail: Detail | None = None  # what was tried; None unless the caller asked for it


@dataclass(frozen=True, slots=True)
class StepNarrowed:
    """Memory ran out in a step, which is tried again with a smaller draft."""

    width: int  # the most tokens of steps after the prompt from now on
    seconds: float  # wall time of the failed try


@dataclass(frozen=True, slots=True)
class Finished:
    """The end of the text: an end token, the caller's `should_stop`, the length asked for, a full
    context, or no memory for a plain step."""

    reason: FinishReason


Event: TypeAlias = Started | PromptRead | Step | StepNarrowed | Finished
