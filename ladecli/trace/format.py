"""The trace of a generation: a file of JSON lines that can be replayed and inspected.

The first line is the header; every other line is an event, in order, or the text of token ids that
the next event has for the first time: reading a trace needs no tokenizer.  Each line is flushed
when it is written, so a program that is killed leaves a trace that can be read.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic_core import from_json

from .. import files
from ..decoder.events import Started, StepNarrowed
from ..errors import LadeError, UsageError
from ..events import Ended, PromptRead, TextEvent, TextStep

if TYPE_CHECKING:
    from ..session.session import Settings
    from ..session.text import Tokenizer

VERSION: Literal[2] = 2
OPTION = "--trace"


class Header(BaseModel):
    """The first line.

    Attributes:
        model: its name.
        prompt: as text, the special tokens of a chat template included.
        prompt_tokens: its length.
        settings: strategy, window, ngram, …; see `describe`.
        plain_step: seconds of a plain step on this machine, where it was measured.
    """

    model_config = ConfigDict(frozen=True)

    format: Literal["lade-trace"] = "lade-trace"
    version: Literal[2] = VERSION
    model: str
    prompt: str
    prompt_tokens: int
    settings: dict[str, Any] = Field(default_factory=dict)
    plain_step: Annotated[float, Field(gt=0)] | None = None


@dataclass(frozen=True, slots=True)
class Spellings:
    """Token ids with their text."""

    texts: dict[int, str]


_Line: TypeAlias = TextEvent | Spellings
_NAMES: dict[type[_Line], str] = {
    Started: "started",
    PromptRead: "prompt_read",
    Spellings: "spellings",
    TextStep: "step",
    StepNarrowed: "step_narrowed",
    Ended: "ended",
}
_ADAPTERS: dict[object, TypeAdapter[_Line]] = {
    name: TypeAdapter(kind) for kind, name in _NAMES.items()
}


@dataclass(frozen=True)
class Trace:
    """A recorded generation.

    Attributes:
        header: what was asked for.
        events: in order.
        spellings: token ids to their text.
        cut: whether the end is missing, because the program was killed while it recorded.
    """

    header: Header
    events: tuple[TextEvent, ...]
    spellings: Mapping[int, str]
    cut: bool = False

    @cached_property
    def steps(self) -> tuple[TextStep, ...]:
        """The events that yielded tokens."""
        return tuple(event for event in self.events if isinstance(event, TextStep))

    def spell(self, token: int) -> str:
        """The text of a token, or its id in angle brackets where the trace does not have it."""
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

    A disk that fills up ends the recording and not the answer: `finish` raises the error.

    Args:
        path: the file; its former content is lost.
        header: what was asked for.
        spell: the text of a token id; see `speller`.

    Raises:
        LadeError: the file cannot be written.
    """

    def __init__(self, path: Path, header: Header, spell: Callable[[int], str]) -> None:
        self._path = path
        self._spell = spell
        self._known: set[int] = set()
        self._failure: OSError | None = None
        try:
            # Lone surrogates, as of a path that is not UTF-8, cannot be written as they are.
            self._file = path.open("w", encoding="utf-8", errors="replace", newline="\n")
        except OSError as error:
            raise self._failed(error) from error
        self._write(header.model_dump())

    def show(self, event: TextEvent) -> None:
        """Record one more event, if those before it could be written."""
        if isinstance(event, TextStep):
            self._write_spellings(event)
        self._write_line(event)

    def finish(self) -> None:
        """Close the file.

        Raises:
            LadeError: not all could be written.
        """
        if self._failure is not None:
            raise self._failed(self._failure)
        self._file.close()

    def _write_spellings(self, step: TextStep) -> None:
        ids = list(step.token_ids)
        if detail := step.detail:
            for row in ((detail.current,), detail.tree, *detail.window, detail.outputs):
                ids += row
        if new := [token for token in dict.fromkeys(ids) if token not in self._known]:
            self._known.update(new)
            self._write_line(Spellings({token: self._spell(token) for token in new}))

    def _write_line(self, line: _Line) -> None:
        values = asdict(line)
        values.pop("times", None)  # of this run alone
        self._write({"event": _NAMES[type(line)], **values})

    def _write(self, values: Mapping[str, Any]) -> None:
        if self._failure is not None:
            return
        try:
            self._file.write(json.dumps(values, ensure_ascii=False, separators=(",", ":")) + "\n")
            self._file.flush()
        except OSError as error:
            with contextlib.suppress(OSError):  # closing writes once more
                self._file.close()
            self._failure = error

    def _failed(self, error: OSError) -> LadeError:
        return LadeError(f"{OPTION} {self._path} cannot be written: {error.strerror}")


def read_trace(path: Path) -> Trace:
    """The trace in a file.

    Raises:
        UsageError: it cannot be read; the message names the file, the line and the fix.
    """
    try:
        first, *lines = files.read(path).split(b"\n")
    except FileNotFoundError:
        raise UsageError(f"there is no trace {path}; check the path") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"the trace {path} cannot be read: {reason}") from None
    header = _read_header(path, first)
    if lines and _json(lines[-1]) is None:
        lines.pop()  # empty; or the program was killed while it wrote this line
    events: list[TextEvent] = []
    spellings: dict[int, str] = {}
    for number, line in enumerate(lines, start=2):
        try:
            if events and isinstance(events[-1], Ended):
                raise ValueError("the trace goes on after its end")
            read = _read_line(line)
        except ValueError as error:
            raise UsageError(
                f"the trace {path}, line {number}: {_reason(error)}; record it again with {OPTION}"
            ) from None
        if isinstance(read, Spellings):
            spellings |= read.texts
        else:
            events.append(read)
    cut = not events or not isinstance(events[-1], Ended)
    return Trace(header, tuple(events), spellings, cut)


def _json(line: bytes) -> Any:
    """The value of a line; None if it has none."""
    try:
        return from_json(line)
    except ValueError:
        return None


def _read_header(path: Path, line: bytes) -> Header:
    values = _json(line)
    if not isinstance(values, dict) or values.get("format") != "lade-trace":
        raise UsageError(f"{path} is not a trace; lade generate {OPTION} FILE records one")
    try:
        return Header.model_validate(values)
    except ValidationError as error:
        raise UsageError(
            f"the trace {path} is not of version {VERSION}: {_reason(error)}; record it again"
        ) from None


def _read_line(line: bytes) -> _Line:
    values = from_json(line)
    name = values.get("event") if isinstance(values, dict) else None
    if not isinstance(name, str) or name not in _ADAPTERS:
        raise ValueError("not an event that this version writes")
    read = _ADAPTERS[name].validate_python(values)
    if isinstance(read, TextStep):
        _check(read)
    return read


def _check(step: TextStep) -> None:
    """Refuse indices and shapes that no step has: the inspector relies on them."""
    if not len(step.pieces) == len(step.token_ids) > 0:
        raise ValueError("there must be a piece for each token id")
    sources = [piece.source for piece in step.pieces]
    if detail := step.detail:
        sources += detail.sources
        if not len(detail.tree) == len(detail.parents) == len(detail.sources):
            raise ValueError("tree, parents and sources differ in length")
        if not all(-1 <= parent < node for node, parent in enumerate(detail.parents)):
            raise ValueError("a node of the tree comes before its parent")
        if not all(0 <= node < len(detail.tree) for node in detail.accepted):
            raise ValueError("accepted names a node that the tree does not have")
        if any(not row or len(row) != len(detail.outputs) for row in detail.window):
            raise ValueError("the window's rows and outputs differ in length")
    if not all(source is None or source.isprintable() for source in sources):
        raise ValueError("a source has control characters")


def _reason(error: ValueError) -> str:
    """The first problem, in one line: the field, where there is one, and what is wrong."""
    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
