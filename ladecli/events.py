"""What a user interface consumes: text, with the origin of every piece.  No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from .decoder.events import Detail, Logprobs, PromptRead, Started, StepNarrowed, StepTimes

Reason: TypeAlias = Literal["eos", "stop", "length", "context", "memory", "interrupted"]


@dataclass(frozen=True, slots=True)
class Piece:
    """Text that became certain with one token."""

    text: str  # may be empty: bytes of an unfinished character, a special token
    # the draft source whose guess was accepted, or None for the model's own token
    source: str | None = None
    reasoning: str = ""  # what the model thinks before `text`, which is its answer


@dataclass(frozen=True, slots=True)
class TextStep:
    """One step of the decoder: a piece for every token that it yielded."""

    pieces: tuple[Piece, ...]  # in order, one for each of `token_ids`
    token_ids: tuple[int, ...]  # what was committed, end tokens included
    width: int  # tokens fed to the model in this step
    proposed: int  # draft tokens among them
    seconds: float  # wall time of the step; see the decoder's `Step`
    detail: Detail | None = None  # what was tried, where the caller asked for it
    times: StepTimes | None = None  # where the seconds went; None in a replayed trace
    # plain steps that take as long, by the profile's curve; None where that knows no width
    cost: float | None = None
    logprobs: tuple[Logprobs, ...] = ()  # one for each of `token_ids`, where they were asked for

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
    # What the answer took, named as in `lade generate --json`: steps, tokens_per_step, seconds …;
    # None but in `Model.stream`.
    figures: Mapping[str, Any] | None = None

    @property
    def text(self) -> str:
        """The rest: what a loop that prints the text of steps must print, too."""
        return self.rest


TextEvent: TypeAlias = Started | PromptRead | TextStep | StepNarrowed | Ended


def pieces_of(event: TextEvent) -> tuple[Piece, ...]:
    """The text that an event adds."""
    match event:
        case TextStep():
            return event.pieces
        case Ended():
            return (Piece(event.rest, None, event.reasoning),)
    return ()
