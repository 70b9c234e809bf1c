"""The trace of a generation: a file of JSON lines that can be played and inspected again.

The first line says what was asked for; every other line is one event, in order.  Each line is
flushed when it is written, so a program that is killed leaves a trace that can be read.  Token ids
are spelled out where they first appear: reading a trace needs no tokenizer.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, Literal, TypeAlias

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from .decoder.events import Detail, Started, StepNarrowed
from .errors import LadeError, UsageError
from .events import Ended, Piece, PromptRead, TextEvent, TextStep
from .visualize import printable

if TYPE_CHECKING:
    from .session import Settings
    from .text import Tokenizer

FORMAT = "lade-trace"
VERSION = 1
OPTION = "--trace"
_LONGEST_HEADER = 100_000_000
"""Bytes; a device without an end is refused after as many."""


def _checked(detail: Detail) -> Detail:
    """Refuse indices and shapes that no step has; the inspector relies on them."""
    if not len(detail.tree) == len(detail.parents) == len(detail.sources):
        raise ValueError("tree, parents and sources differ in length")
    if not all(-1 <= parent < node for node, parent in enumerate(detail.parents)):
        raise ValueError("a node of the tree comes before its parent")
    if not all(0 <= node < len(detail.tree) for node in detail.accepted):
        raise ValueError("accepted names a node that the tree does not have")
    if any(len(row) != len(detail.outputs) for row in detail.window):
        raise ValueError("the window's rows and outputs differ in length")
    if detail.window and not detail.outputs:
        raise ValueError("the window has no columns")
    return replace(detail, sources=tuple(map(printable, detail.sources)))


class _Line(BaseModel):
    """One line of a trace."""

    model_config = ConfigDict(strict=True, frozen=True)


class _Stamp(_Line):
    """The part of the first line that tells a trace from other files."""

    format: Literal["lade-trace"]
    version: Any = None


class Header(_Line):
    """What was asked for.

    Attributes:
        model: its name.
        prompt: as text, the special tokens of a chat template included.
        prompt_tokens: its length.
        settings: strategy, window, ngram, …: values that JSON can hold.
        plain_step: seconds of a plain step on this machine, where it was measured.
    """

    model: str
    prompt: str
    prompt_tokens: int
    settings: dict[str, Any] = Field(default_factory=dict)
    plain_step: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None


class StepLine(_Line):
    """A `TextStep` in columns; `spelled` has the text of token ids that are new in the trace."""

    pieces: tuple[str, ...]
    sources: tuple[Annotated[str, AfterValidator(printable)] | None, ...]
    ids: Annotated[tuple[int, ...], Field(min_length=1)]
    width: int
    proposed: int
    seconds: float
    detail: Annotated[Detail, AfterValidator(_checked)] | None = None
    spelled: dict[int, str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _one_piece_per_token(self) -> StepLine:
        if not len(self.pieces) == len(self.sources) == len(self.ids):
            raise ValueError("pieces, sources and ids differ in length")
        return self

    def to_step(self) -> TextStep:
        """The event of this line."""
        pieces = tuple(map(Piece, self.pieces, self.sources))
        return TextStep(pieces, self.ids, self.width, self.proposed, self.seconds, self.detail)


def _possible(line: EventLine) -> EventLine:
    """Refuse sizes and times that no event has."""
    for name in ("cached", "done", "total", "width", "proposed", "seconds"):
        if not 0 <= getattr(line, name, 0) < math.inf:
            raise ValueError(f"{name} must be a number from 0 on")
    return line


EventLine: TypeAlias = Started | PromptRead | StepLine | StepNarrowed | Ended
_NAMES = {
    Started: "started",
    PromptRead: "prompt_read",
    StepNarrowed: "squeezed",
    Ended: "ended",
}
"""Of events that a line holds as they are; "step" is a `StepLine`."""
_EVENT_LINE: TypeAdapter[EventLine] = TypeAdapter(
    Annotated[
        Annotated[Started, Tag("started")]
        | Annotated[PromptRead, Tag("prompt_read")]
        | Annotated[StepLine, Tag("step")]
        | Annotated[StepNarrowed, Tag("squeezed")]
        | Annotated[Ended, Tag("ended")],
        Discriminator(
            lambda line: line.get("event") if isinstance(line, dict) else None,
            custom_error_type="event",
            custom_error_message="not an event that this version writes",
        ),
        AfterValidator(_possible),
    ]
)


@dataclass(frozen=True, slots=True)
class Trace:
    """A recorded generation.

    Attributes:
        header: what was asked for.
        events: in order.
        spellings: token ids to their text.
        cut: whether the end is missing, because the program was stopped while it recorded.
    """

    header: Header
    events: tuple[TextEvent, ...]
    spellings: Mapping[int, str]
    cut: bool = False

    @property
    def steps(self) -> tuple[TextStep, ...]:
        """The events that yielded tokens."""
        return tuple(event for event in self.events if isinstance(event, TextStep))

    def spell(self, token: int) -> str:
        """The text of a token, or its id in angle brackets where the trace does not say."""
        return self.spellings.get(token, f"<{token}>")


def describe(settings: Settings) -> dict[str, Any]:
    """The settings of an answer as a header holds them."""
    look, sampling = settings.lookahead, settings.sampling
    described: dict[str, Any] = {"strategy": settings.strategy}
    if settings.strategy == "lookahead":
        described |= {
            "window": look.window,
            "ngram": look.ngram,
            "guesses": look.guesses,
            "budget": look.step_limit,
            "sources": list(look.sources),
        }
    return described | asdict(sampling) | {"max_new_tokens": settings.max_new_tokens}


def speller(tokenizer: Tokenizer) -> Callable[[int], str]:
    """A function from a token id to its text, the space that starts a word included.

    Some tokenizers drop the space at the start of a text, so a token is decoded after itself.
    """

    def spell(token: int) -> str:
        once = tokenizer.decode([token], skip_special_tokens=False)
        twice = tokenizer.decode([token, token], skip_special_tokens=False)
        return twice[len(once) :] if twice.startswith(once) else once

    return spell


class TraceWriter:
    """Writes a trace while the answer is made.

    Args:
        path: the file; its former content is lost.
        header: what was asked for.
        spell: the text of a token id; see `speller`.

    A disk that fills up ends the recording and not the answer: `finish` raises the error.

    Raises:
        LadeError: the file cannot be written; `finish` raises it, too.
    """

    def __init__(self, path: Path, header: Header, spell: Callable[[int], str]) -> None:
        self._path = path
        self._spell = spell
        self._known: set[int] = set()
        self._failure: LadeError | None = None
        try:
            # Lone surrogates, as of a path that is not UTF-8, cannot be written as they are.
            self._file = path.open("w", encoding="utf-8", errors="replace", newline="\n")
        except OSError as error:
            raise self._failed(error) from error
        self._write({"format": FORMAT, "version": VERSION, **header.model_dump()})
        if self._failure is not None:  # nothing was answered yet
            raise self._failure

    def show(self, event: TextEvent) -> None:
        """Record one more event, if those before it could be written."""
        if self._failure is not None:
            return
        if isinstance(event, TextStep):
            values = self._step_line(event).model_dump()
            if not values["spelled"]:
                del values["spelled"]
            self._write({"event": "step", **values})
        else:
            self._write({"event": _NAMES[type(event)], **asdict(event)})

    def finish(self) -> None:
        """Close the file.

        Raises:
            LadeError: not all could be written.
        """
        if self._failure is not None:
            raise self._failure
        try:
            self._file.close()
        except OSError as error:
            raise self._failed(error) from error

    def _step_line(self, step: TextStep) -> StepLine:
        return StepLine(
            pieces=tuple(piece.text for piece in step.pieces),
            sources=tuple(piece.source for piece in step.pieces),
            ids=step.token_ids,
            width=step.width,
            proposed=step.proposed,
            seconds=step.seconds,
            detail=step.detail,
            spelled=self._new_spellings(step),
        )

    def _new_spellings(self, step: TextStep) -> dict[int, str]:
        ids = list(step.token_ids)
        if detail := step.detail:
            for row in ((detail.current,), detail.tree, *detail.window, detail.outputs):
                ids += row
        new = [token for token in dict.fromkeys(ids) if token not in self._known]
        self._known.update(new)
        return {token: self._spell(token) for token in new}

    def _write(self, values: Mapping[str, Any]) -> None:
        try:
            self._file.write(json.dumps(values, ensure_ascii=False, separators=(",", ":")) + "\n")
            self._file.flush()
        except OSError as error:
            with contextlib.suppress(OSError):  # closing writes once more
                self._file.close()
            self._failure = self._failed(error)

    def _failed(self, error: OSError) -> LadeError:
        return LadeError(f"{OPTION} {self._path} cannot be written: {error.strerror}")


def read_trace(path: Path) -> Trace:
    """The trace in a file.

    Raises:
        UsageError: there is none, or it is damaged; the message names the file, the line and
            the fix.
    """
    try:
        with path.open("rb") as file:
            header = _read_header(path, file.readline(_LONGEST_HEADER))
            return _read_events(path, header, file)
    except FileNotFoundError:
        raise UsageError(f"there is no trace {path}; check the path") from None
    except IsADirectoryError:
        raise UsageError(f"the trace {path} is a folder; name a file in it") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"the trace {path} cannot be read: {reason}") from None


def _read_header(path: Path, line: bytes) -> Header:
    try:
        stamp = _Stamp.model_validate_json(line)
    except ValidationError:
        raise UsageError(
            f"{path} is not a trace; lade generate {OPTION} FILE records one"
        ) from None
    if stamp.version != VERSION:
        raise UsageError(
            f"the trace {path} has version {stamp.version!r} and this program reads {VERSION};"
            " record it again"
        )
    try:
        return Header.model_validate_json(line)
    except ValidationError as error:
        raise _damaged(path, 1, _reason(error)) from None


def _read_events(path: Path, header: Header, lines: BinaryIO) -> Trace:
    """The trace with all events of the lines after the first."""
    events: list[TextEvent] = []
    spellings: dict[int, str] = {}
    for number, line in enumerate(lines, start=2):
        if events and isinstance(events[-1], Ended):
            raise _damaged(path, number, "the trace goes on after its end")
        try:
            parsed = _EVENT_LINE.validate_json(line, strict=True)
        except ValidationError as error:
            if not line.endswith(b"\n") and error.errors()[0]["type"] == "json_invalid":
                break  # the program was stopped while it wrote this line
            raise _damaged(path, number, _reason(error)) from None
        if isinstance(parsed, StepLine):
            spellings |= parsed.spelled
            events.append(parsed.to_step())
        else:
            events.append(parsed)
    cut = not events or not isinstance(events[-1], Ended)
    return Trace(header, tuple(events), spellings, cut)


def _reason(error: ValidationError) -> str:
    """The first thing that is wrong, in one line: where in the object, and what."""
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    what = first["msg"].removeprefix("Value error, ")
    return f"{where}: {what}" if where else what


def _damaged(path: Path, number: int, reason: str) -> UsageError:
    return UsageError(f"the trace {path}, line {number}: {reason}; record it again with {OPTION}")
