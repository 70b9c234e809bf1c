"""Prompt suites: the builtin one, four of the field's from the hub, and the user's JSONL files.

The builtin suite was written for this program: chat, code, maths, summary, translation, retrieval.
"""

from __future__ import annotations

import contextlib
import difflib
import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Annotated

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    Field,
    ValidationError,
    model_validator,
)

from . import files
from .errors import LadeError, UsageError

BUILTIN = "builtin"
STDIN = "-"
"""The name of standard input."""
FIX = "give prompts of your own by --prompts FILE.jsonl"


@dataclass(frozen=True, slots=True)
class Row:
    """One conversation.

    Attributes:
        id: unique in the suite.
        turns: the user's texts; at least one, none blank.
    """

    id: str
    category: str
    turns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Suite:
    """Conversations with distinct ids, at least one.

    Attributes:
        name: one of `NAMES`, a path as typed, or "standard input".
    """

    name: str
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class Source:
    """A JSONL file on the hub.

    Attributes:
        kind: of the repository: "dataset" or "space".
        id: key of a row's id; None to number rows from 0 on.
        prompt: key of the prompt in rows without "turns".
        category: of all rows; None where each row has its own.
        prefix: prepended to ids.
    """

    repository: str
    kind: str
    file: str
    id: str | None = None
    prompt: str = "prompt"
    category: str | None = None
    prefix: str = ""


def _not_blank(text: str) -> str:
    if not text.strip():
        raise ValueError("it is empty")
    return text


def _named(value: object) -> object:
    """Numbers are names, too."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    return value.strip() if isinstance(value, str) else value


_Text = Annotated[str, AfterValidator(_not_blank)]
_Name = Annotated[str, BeforeValidator(_named)]


class _Line(BaseModel):
    """A line of a file; `prompt` comes first where both are there."""

    id: _Name | None = None
    category: _Name | None = None
    prompt: _Text | None = None
    turns: Annotated[list[_Text], Field(min_length=1)] | None = None

    @model_validator(mode="after")
    def _has_text(self) -> _Line:
        if self.prompt is None and self.turns is None:
            raise ValueError("needs 'prompt' or 'turns'")
        return self


_COLLECTION = "RedHatAI/speculator_benchmarks"
_MT_BENCH = Source(
    "lmsys/mt-bench",
    "space",
    "data/mt_bench/question.jsonl",
    id="question_id",
    prefix="mt-bench/",
)
_HUMANEVAL = Source(_COLLECTION, "dataset", "HumanEval.jsonl", id="task_id", category="humaneval")
# The repository of its authors holds Parquet, which would need another library.
_GSM8K = Source(
    "DaertML/gsm8k-jsonl",
    "dataset",
    "test.jsonl",
    prompt="question",
    category="gsm8k",
    prefix="gsm8k/",
)
_SPEC_BENCH = tuple(
    Source(_COLLECTION, "dataset", f"{name}.jsonl", category=name, prefix=f"{name}/")
    for name in ("translation", "summarization", "qa", "math_reasoning", "rag")
)
_ON_THE_HUB: dict[str, tuple[int, tuple[Source, ...]]] = {
    "mt-bench": (80, (_MT_BENCH,)),
    "humaneval": (164, (_HUMANEVAL,)),
    "gsm8k": (1319, (_GSM8K,)),
    "spec-bench": (480, (_MT_BENCH, *_SPEC_BENCH)),
}
"""Number of rows and files of each suite."""
NAMES = (BUILTIN, *_ON_THE_HUB)


def load(name: str, *, offline: bool = False, progress: bool = False) -> Suite:
    """Load a suite by name, or a file.

    Args:
        name: one of `NAMES`, the path of a JSONL file, or "-" for standard input; a file with the
            name of a suite is ./NAME.
        offline: use the hub's cache only.
        progress: show a bar on stderr while downloading.

    Raises:
        UsageError: there is no such suite or file, or a row is invalid.
        LadeError: a suite cannot be fetched.
    """
    if name == BUILTIN:
        text = resources.files(__package__).joinpath("suites.jsonl").read_text(encoding="utf-8")
        return Suite(name, tuple(_parse(text, name).values()))
    if name in _ON_THE_HUB:
        return Suite(name, _fetch(name, offline, progress))
    is_path = os.sep in name or name.endswith((".jsonl", ".json")) or name == STDIN
    if not is_path and not (name and os.path.exists(name)):
        near = difflib.get_close_matches(name.lower().replace("_", "-"), NAMES, n=1)
        fix = f"did you mean {near[0]}?" if near else f"use {', '.join(NAMES)} or a .jsonl file"
        raise UsageError(f"there is no prompt suite or file {name!r}; {fix}")
    rows, where = read_rows(name), _short(name)
    lines: dict[str, int] = {}
    for number, row in rows.items():
        if row.id in lines:
            raise UsageError(
                f"{where}, lines {lines[row.id]} and {number}: both rows have the id {row.id!r};"
                " give each its own"
            )
        lines[row.id] = number
    return Suite(where, tuple(rows.values()))


def some(rows: Sequence[Row], limit: int | None) -> tuple[Row, ...]:
    """At most `limit` rows: the first of every category, then the second of each, and so on."""
    if limit is None:
        return tuple(rows)
    by_category: dict[str, list[Row]] = {}
    for row in rows:
        by_category.setdefault(row.category, []).append(row)
    longest = max(map(len, by_category.values()))
    order = [group[n] for n in range(longest) for group in by_category.values() if n < len(group)]
    return tuple(order[:limit])


def spoken(name: str) -> str:
    """A prompt file, or standard input, in an error message."""
    return "standard input" if name == STDIN else f"the prompt file {name}"


def name_of(line: int) -> str:
    """The id of a row that has none of its own."""
    return f"line-{line}"


def read_text(name: str) -> str:
    """The text of a file, or of standard input.

    Raises:
        UsageError: it cannot be read, or is not text; the message names it and the fix.
    """
    if name == STDIN and sys.stdin is None:
        raise UsageError("standard input is closed; name a file in place of -")
    try:
        if name == STDIN:
            data = files.read_stream(sys.stdin.buffer)
        else:
            data = files.read(Path(name).expanduser())
    except FileNotFoundError:
        raise UsageError(f"there is no prompt file {name}; check the path") from None
    except IsADirectoryError:
        raise UsageError(f"the prompt file {name} is a folder; name a file in it") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"{spoken(name)} cannot be read: {reason}") from error
    if b"\0" in data:
        raise UsageError(f"{spoken(name)} is binary (a zero byte); give a text file")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{spoken(name)} is not UTF-8 (byte {error.start}); convert it, for example with"
            " iconv -f latin1 -t utf-8"
        ) from None


def read_rows(name: str) -> dict[int, Row]:
    """The rows of a JSONL file, or of standard input, by line number.

    Raises:
        UsageError: it cannot be read, a row is invalid, or there is none.
    """
    text = read_text(name)
    rows = _parse(text, _short(name))
    if not rows:
        problem = "holds no prompts" if text else "is empty"
        raise UsageError(f'{spoken(name)} {problem}; write rows like {{"prompt": "Hello"}}')
    return rows


def _short(name: str) -> str:
    return "standard input" if name == STDIN else name


def _parse(text: str, where: str) -> dict[int, Row]:
    """Rows by line number, from 1 on; unknown keys and blank lines are ignored."""
    rows: dict[int, Row] = {}
    # Strings of JSON may contain other line separators than this one.
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            found = _Line.model_validate_json(line)
        except ValidationError as error:
            raise UsageError(f"{where}, line {number}: {_invalid(error)}") from None
        turns = found.turns or [] if found.prompt is None else [found.prompt]
        rows[number] = Row(found.id or name_of(number), found.category or "all", tuple(turns))
    return rows


def _invalid(error: ValidationError) -> str:
    """What is wrong with a line, in a few words: "turns, 2: it is empty"."""
    first = error.errors()[0]
    # Places in lists are counted from 1 on.
    keys = [str(key + 1) if isinstance(key, int) else key for key in first["loc"]]
    return ": ".join(filter(None, (", ".join(keys), first["msg"].removeprefix("Value error, "))))


def _fetch(name: str, offline: bool, progress: bool) -> tuple[Row, ...]:
    """The rows of a suite of the hub, from its cache where they are there.

    Raises:
        LadeError: it cannot be fetched, or its files changed on the hub.
    """
    count, sources = _ON_THE_HUB[name]
    rows: list[Row] = []
    try:
        for source in sources:
            with _bars(progress):
                path = _path(source, offline)
            lines = path.read_text(encoding="utf-8").split("\n")
            for number, line in enumerate(filter(str.strip, lines)):
                row = json.loads(line)
                own = str(row[source.id]) if source.id else str(number)
                turns = row.get("turns") or [row[source.prompt]]
                category = source.category or row["category"]
                rows.append(Row(source.prefix + own, category, tuple(turns)))
    except (KeyError, TypeError, json.JSONDecodeError) as error:
        raise LadeError(f"the suite {name} was changed on the hub ({error!r}); {FIX}") from error
    except Exception as error:  # the hub's own errors, its HTTP library's, the disk's
        raise LadeError(f"{_reason(name, error, offline)}; {FIX}") from error
    if len(rows) != count:
        raise LadeError(
            f"the suite {name} was changed on the hub ({len(rows)} rows, not {count}); {FIX}"
        )
    return tuple(rows)


def _path(source: Source, offline: bool) -> Path:
    """Where the file is, after a download if need be."""
    from huggingface_hub import constants, errors, hf_hub_download

    from .specs.hub import hub_answers

    asking = {"repo_id": source.repository, "filename": source.file, "repo_type": source.kind}
    try:
        # What was fetched once is used as it is: figures stay comparable, and no network is asked.
        return Path(hf_hub_download(**asking, local_files_only=True))
    except errors.LocalEntryNotFoundError:
        if offline or constants.HF_HUB_OFFLINE or not hub_answers():
            raise
    return Path(hf_hub_download(**asking))


def _reason(suite: str, error: Exception, offline: bool) -> str:
    """Why a suite cannot be fetched."""
    from huggingface_hub import errors

    if isinstance(error, errors.LocalEntryNotFoundError | errors.OfflineModeIsEnabled):
        why = "--offline forbids to fetch it" if offline else "the hub cannot be reached"
        return f"the suite {suite} is not on this machine, and {why}"
    lines = str(error).strip().splitlines()
    return f"the suite {suite} cannot be fetched: {lines[0] if lines else type(error).__name__}"


@contextlib.contextmanager
def _bars(progress: bool) -> Iterator[None]:
    """Keep the hub's bars out of the terminal, unless they are wanted."""
    from huggingface_hub import utils

    if progress or utils.are_progress_bars_disabled():
        yield
        return
    utils.disable_progress_bars()
    try:
        yield
    finally:
        utils.enable_progress_bars()
