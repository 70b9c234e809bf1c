"""Events for user interfaces: text, with the draft source of every piece.  No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from .decoder.events import Detail, Logprobs, PromptRead, Started, StepNarrowed, StepTimes

Reason: TypeAlias = Literal["eos", "stop", "length", "context", "memory", "interrupted"]


@dataclass(frozen=True, slots=True)
class Piece:
    """Text that became certain with one token."""

    text: str  # of the answer; empty for an incomplete character or a special token
    source: str | None = None  # of the accepted draft token; None for the model's own token
    reasoning: str = ""  # text of the reasoning, which comes before the answer


@dataclass(frozen=True, slots=True)
class TextStep:
    """One step of the decoder: a piece for every token that it yielded."""

    pieces: tuple[Piece, ...]  # in order, one for each of `token_ids`
    token_ids: tuple[int, ...]  # the committed tokens, with end tokens
    width: int  # tokens fed to the model in this step
    proposed: int  # draft tokens among them
    seconds: float  # wall time of the step; see the decoder's `Step`
    detail: Detail | None = None  # the step's candidates, if the caller asked for them
    times: StepTimes | None = None  # the time by part of the step; None in a replayed trace
    # in plain steps, by the cost curve; None if the curve has only width 1
    cost: float | None = None
    logprobs: tuple[Logprobs, ...] = ()  # one for each of `token_ids`, if they were asked for

    @property
    def text(self) -> str:
        """The text of all pieces."""
        return "".join(piece.text for piece in self.pieces)

    @property
    def reasoning(self) -> str:
        """The reasoning of all pieces."""
        return "".join(piece.reasoning for piece in self.pieces)


@dataclass(frozen=True, slots=True)
class Ended:
    """The answer is over; `rest` and `reasoning` were held back until now."""

    reason: Reason
    rest: str = ""
    reasoning: str = ""
    # Figures of the answer, named as in `lade generate --json`: steps, tokens_per_step, seconds …;
    # None except in `Model.stream`.
    figures: Mapping[str, Any] | None = None

    @property
    def text(self) -> str:
        """The rest of the text, under the same name as in `TextStep`."""
        return self.rest


TextEvent: TypeAlias = Started | PromptRead | TextStep | StepNarrowed | Ended


def pieces_of(event: TextEvent) -> tuple[Piece, ...]:
    """Return the pieces of text that an event adds."""
    match event:
        case TextStep():
            return event.pieces
        case Ended():
            return (Piece(event.rest, None, event.reasoning),)
    return ()
