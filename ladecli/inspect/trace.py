"""The trace of a generation: a file of JSON lines that can be played and looked into again.

The first line says what was asked for; every other line is one event, in the order in which
they came.  Lines are written one by one, so whatever ends the program leaves a trace that can
be read.  Token ids are spelled out where they first appear: no tokenizer is needed to read it.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TextIO

from .. import reading
from ..errors import LadeError, UsageError
from ..events import Ended, TextEvent, TextStep
from .trace_lines import LineError, as_line, as_object, event_of, ids_of, spelled_of

if TYPE_CHECKING:
    from ..session import Settings
    from ..text import Tokenizer

FORMAT = "lade-trace"
VERSION = 1
OPTION = "--trace"


@dataclass(frozen=True, slots=True)
class Header:
    """What was asked for.

    Attributes:
        model: its name.
        prompt: as text, the special tokens of a chat template included.
        prompt_tokens: how many it has.
        settings: strategy, window, ngram, …: plain values that JSON can hold.
        plain_step: seconds of a plain step on this machine, where it was measured.
    """

    model: str
    prompt: str
    prompt_tokens: int
    settings: Mapping[str, Any] = field(default_factory=dict)
    plain_step: float | None = None


@dataclass(frozen=True, slots=True)
class Trace:
    """A recorded generation.

    Attributes:
        header: what was asked for.
        events: in order.
        spellings: the text of token ids.
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

    Some tokenizers drop the space at the start of a text, so a token is decoded behind itself.
    """

    def spell(token: int) -> str:
        once = tokenizer.decode([token], skip_special_tokens=False)
        twice = tokenizer.decode([token, token], skip_special_tokens=False)
        return twice[len(once) :] if twice.startswith(once) else once

    return spell


class TraceWriter:
    """Writes a trace while the answer is made.

    Args:
        path: the file; what it held is lost.
        header: what was asked for.
        spell: the text of a token id; see `speller`.

    A disk that fills up on the way ends the recording and not the answer: `finish` says so.

    Raises:
        LadeError: the file cannot be written; `finish` raises it, too.
    """

    def __init__(self, path: Path, header: Header, spell: Callable[[int], str]) -> None:
        self._path = path
        self._spell = spell
        self._known: set[int] = set()
        self._failure: LadeError | None = None
        try:
            # A lone surrogate becomes an escape, which JSON reads as what it was.
            self._file: TextIO = path.open(
                "w", encoding="utf-8", errors="backslashreplace", newline="\n"
            )
        except OSError as error:
            raise self._failed(error) from error
        self._write({"format": FORMAT, "version": VERSION, **asdict(header)})
        if self._failure is not None:  # nothing was answered yet
            raise self._failure

    def show(self, event: TextEvent) -> None:
        """Record one more event, if those before it could be written."""
        if self._failure is not None:
            return
        new = [token for token in ids_of(event) if token not in self._known]
        self._known.update(new)
        self._write(as_object(event, {token: self._spell(token) for token in new}))

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

    def _write(self, values: Mapping[str, Any]) -> None:
        try:
            self._file.write(as_line(values))
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
            what helps.
    """
    header, lines, whole = _read(path)
    events: list[TextEvent] = []
    spellings: dict[int, str] = {}
    for number, line in enumerate(lines, start=2):
        try:
            values = _values(line)
        except LineError as error:
            if number == len(lines) + 1 and not whole:
                break
            raise _damaged(path, number, error) from None
        try:
            if events and isinstance(events[-1], Ended):
                raise LineError("the trace goes on behind its end")
            events.append(event_of(values))
            spellings |= spelled_of(values)
        except LineError as error:
            raise _damaged(path, number, error) from None
    cut = not events or not isinstance(events[-1], Ended)
    return Trace(header, tuple(events), MappingProxyType(spellings), cut)


def _read(path: Path) -> tuple[Header, Sequence[bytes], bool]:
    """The header, the lines behind it, and whether the last one has its line break."""
    try:
        with path.expanduser().open("rb") as file:
            # A trace may be large, and a device has no end: its first line tells them apart.
            first = file.readline(reading.LIMIT)
            header = _header(path, first.removesuffix(b"\n"))
            data = file.read()
    except FileNotFoundError:
        raise UsageError(f"there is no trace {path}; check the path") from None
    except IsADirectoryError:
        raise UsageError(f"the trace {path} is a folder; name a file in it") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"the trace {path} cannot be read: {reason}") from None
    lines = data.removesuffix(b"\n").split(b"\n") if data else []
    return header, lines, (data or first).endswith(b"\n")


def _values(line: bytes) -> dict[str, Any]:
    try:
        values = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise LineError(f"not UTF-8 (byte {error.start})") from None
    except json.JSONDecodeError as error:
        raise LineError(f"no JSON ({error.msg})") from None
    except (ValueError, RecursionError):
        raise LineError("no JSON that can be read") from None
    if not isinstance(values, dict):
        raise LineError("no JSON object")
    return values


def _header(path: Path, line: bytes) -> Header:
    try:
        values = _values(line)
    except LineError:
        values = {}
    if values.get("format") != FORMAT:
        raise UsageError(f"{path} is no trace; lade generate {OPTION} FILE records one")
    if values.get("version") != VERSION:
        raise UsageError(
            f"the trace {path} has version {values.get('version')!r} and this program reads"
            f" {VERSION}; record it again"
        )
    plain = values.get("plain_step")
    fits = (
        isinstance(values.get("model"), str)
        and isinstance(values.get("prompt"), str)
        and type(values.get("prompt_tokens")) is int
        and isinstance(values.get("settings"), dict)
        and (plain is None or (type(plain) in (int, float) and 0 < plain < float("inf")))
    )
    if not fits:
        raise _damaged(path, 1, LineError("the header lacks a value, or has one of a wrong kind"))
    return Header(
        values["model"], values["prompt"], values["prompt_tokens"], values["settings"], plain
    )


def _damaged(path: Path, number: int, error: LineError) -> UsageError:
    return UsageError(f"the trace {path}, line {number}: {error}; record it again with {OPTION}")
