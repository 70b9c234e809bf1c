"""The trace of a generation: a file of JSON lines that can be replayed and inspected.

The first line is the header.  Every other line is an event, or has the texts of token ids that
occur for the first time in the next event, so that reading a trace needs no tokenizer.  Each line
is flushed when it is written, so a killed program leaves a readable trace.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    TypeAdapter,
    ValidationError,
)

from .. import files
from ..decoder.events import Detail, PromptRead, Started, StepNarrowed
from ..errors import LadeError, UsageError, flaw
from ..events import Ended, TextEvent, TextStep

OPTION = "--trace"


class Header(BaseModel):
    """The first line of a trace."""

    model_config = ConfigDict(frozen=True)

    format: Literal["lade-trace"] = "lade-trace"
    version: Literal[3] = 3
    model: str
    prompt: str  # as text, the special tokens of a chat template included
    prompt_tokens: int
    settings: dict[str, Any] = Field(default_factory=dict)  # see `record.describe`


@dataclass(frozen=True, slots=True)
class Spellings:
    """The texts of token ids."""

    texts: dict[int, str]


def _event(line: Any) -> Any:
    """Return the kind of event on a line, or None."""
    return line.get("event") if isinstance(line, dict) else None


def _checked(step: TextStep) -> TextStep:
    """Check the indices and shapes of a step, on which the inspector relies."""
    detail = step.detail or Detail(0)
    accepted = zip((-1, *detail.accepted), detail.accepted, strict=False)
    checks = (
        len(step.pieces) == len(step.token_ids) > 0,
        len(detail.tree) == len(detail.parents) == len(detail.sources),
        all(-1 <= parent < node for node, parent in enumerate(detail.parents)),
        all(detail.parents[node : node + 1] == (parent,) for parent, node in accepted),
        all(row and len(row) == len(detail.outputs) for row in detail.window),
    )
    if not all(checks):
        raise ValueError("pieces, a tree or a window that no step has")
    return step


_NAMES: dict[type[TextEvent | Spellings], str] = {
    Started: "started",
    PromptRead: "prompt_read",
    Spellings: "spellings",
    TextStep: "step",
    StepNarrowed: "step_narrowed",
    Ended: "ended",
}
_Line: TypeAlias = Annotated[
    Annotated[Started, Tag("started")]
    | Annotated[PromptRead, Tag("prompt_read")]
    | Annotated[Spellings, Tag("spellings")]
    | Annotated[TextStep, AfterValidator(_checked), Tag("step")]
    | Annotated[StepNarrowed, Tag("step_narrowed")]
    | Annotated[Ended, Tag("ended")],
    Discriminator(_event),
]
_LINE: TypeAdapter[TextEvent | Spellings] = TypeAdapter(_Line)


@dataclass(frozen=True)
class Trace:
    """A recorded generation."""

    header: Header
    events: tuple[TextEvent, ...]
    spellings: Mapping[int, str]  # of token ids
    cut: bool = False  # the end is missing because the program was killed

    @cached_property
    def steps(self) -> tuple[TextStep, ...]:
        """The events that yielded tokens."""
        return tuple(event for event in self.events if isinstance(event, TextStep))

    def spell(self, token: int) -> str:
        """Return the text of a token, or its id in angle brackets if the trace lacks it."""
        return self.spellings.get(token, f"<{token}>")


class TraceWriter:
    """Writes a trace while the answer is generated.

    A full disk ends the recording but not the answer; `finish` raises the error.

    Args:
        path: the file; its former content is lost.
        header: the first line.
        spell: returns the text of a token id; see `session.tokens.speller`.

    Raises:
        LadeError: the file cannot be written.
    """

    def __init__(self, path: Path, header: Header, spell: Callable[[int], str]) -> None:
        self._path = path
        self._spell = spell
        self._known: set[int] = set()
        self._failure: OSError | None = None
        try:
            # Lone surrogates, as in a path that is not UTF-8, must be replaced.
            self._file = open(  # noqa: SIM115  (`finish` closes it)
                path, "w", encoding="utf-8", errors="replace", newline="\n", opener=files.guarded
            )
        except OSError as error:
            raise self._failed(error) from error
        self._write(header.model_dump())

    def show(self, event: TextEvent) -> None:
        """Record one more event, unless an earlier write failed."""
        if isinstance(event, TextStep):
            self._write_spellings(event)
        self._write_line(event)

    def finish(self) -> None:
        """Close the file.

        Raises:
            LadeError: some events could not be written.
        """
        with contextlib.suppress(OSError):  # closing tries to write the rest
            self._file.close()
        if self._failure is not None:
            raise self._failed(self._failure)

    def _write_spellings(self, step: TextStep) -> None:
        ids = list(step.token_ids)
        if detail := step.detail:
            for row in ((detail.current,), detail.tree, *detail.window, detail.outputs):
                ids += row
        if new := [token for token in dict.fromkeys(ids) if token not in self._known]:
            self._known.update(new)
            self._write_line(Spellings({token: self._spell(token) for token in new}))

    def _write_line(self, line: TextEvent | Spellings) -> None:
        values = asdict(line)
        # A trace needs none of these.
        for name in ("times", "logprobs", "figures"):
            values.pop(name, None)
        for holder in (values, *values.get("pieces", ())):
            if not holder.get("reasoning", True):
                del holder["reasoning"]  # few models have any
        self._write({"event": _NAMES[type(line)], **values})

    def _write(self, values: Mapping[str, Any]) -> None:
        if self._failure is not None:
            return
        try:
            self._file.write(json.dumps(values, ensure_ascii=False, separators=(",", ":")) + "\n")
            self._file.flush()
        except OSError as error:
            self._failure = error

    def _failed(self, error: OSError) -> LadeError:
        return LadeError(f"{OPTION} {self._path} cannot be written: {error.strerror}")


def read_trace(path: Path) -> Trace:
    """Read the trace in a file.

    Raises:
        UsageError: it cannot be read; the message names the file, the line and the fix.
    """
    # The text after the last line break is empty, or incomplete if the program was killed.
    *lines, _ = files.read_named(str(path), "trace", pipes=False).split(b"\n")
    number, events, spellings = 1, list[TextEvent](), dict[int, str]()
    if not lines or b'"lade-trace"' not in lines[0]:
        raise UsageError(f"{path} is not a trace; lade generate {OPTION} FILE records one")
    try:
        header = Header.model_validate_json(lines[0])
        for line in lines[1:]:
            number += 1
            read = _LINE.validate_json(line)
            if isinstance(read, Spellings):
                spellings |= read.texts
            else:
                events.append(read)
    except ValidationError as error:
        raise UsageError(
            f"the trace {path}, line {number}: {flaw(error)}; record it again with {OPTION}"
        ) from None
    cut = not events or not isinstance(events[-1], Ended)
    return Trace(header, tuple(events), spellings, cut)
