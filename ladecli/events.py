"""What a user interface consumes: text, with the origin of every piece.  No torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from .decoder.events import Detail, Started, StepNarrowed, StepTimes

Reason: TypeAlias = Literal["eos", "stop", "length", "context", "memory", "interrupted"]


@dataclass(frozen=True, slots=True)
class Piece:
    """Text that became certain with one token.

    Attributes:
        text: may be empty: bytes of an unfinished character, a special token.
        source: the draft source whose guess was accepted, or None for the model's own token.
        reasoning: what the model thinks before `text`, which is its answer.
    """

    text: str
    source: str | None = None
    reasoning: str = ""


@dataclass(frozen=True, slots=True)
class PromptRead:
    """`done` of `total` prompt tokens are read."""

    done: int
    total: int
    seconds: float


@dataclass(frozen=True, slots=True)
class TextStep:
    """One step of the decoder: a piece for every token that it yielded.

    Attributes:
        pieces: in order, one for each of `token_ids`.
        token_ids: what was committed, end tokens included.
        width: tokens fed to the model in this step.
        proposed: draft tokens among them.
        seconds: wall time of the step; see the decoder's `Step`.
        detail: what was tried, where the caller asked for it.
        times: where the seconds went; None in a replayed trace.
        cost: plain steps that take as long, by the profile's curve; None where that knows no width.
    """

    pieces: tuple[Piece, ...]
    token_ids: tuple[int, ...]
    width: int
    proposed: int
    seconds: float
    detail: Detail | None = None
    times: StepTimes | None = None
    cost: float | None = None

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
