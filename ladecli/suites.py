"""Prompt suites: the builtin one, four well-known ones from the hub, and the user's JSONL files.

The builtin suite was written for this program: chat, code, maths, summary, translation, retrieval.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from itertools import chain, zip_longest
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    Field,
    ValidationError,
)

from . import files
from .errors import LadeError, UsageError, describe_error, flaw
from .session.chat_template import ChatMessage
from .session.conversation import OpenAIMessage, for_template
from .session.dialogue import Row

BUILTIN = "builtin"
STDIN = "-"
"""The name of standard input."""
FIX = "give prompts of your own by --prompts FILE.jsonl"
EXAMPLE = 'write rows like {"prompt": "Hello"}'


_Name = Annotated[str, Field(coerce_numbers_to_str=True)]


class _Line(BaseModel):
    """A line of a file; the first of `messages` may be a system message in place of `system`."""

    id: _Name | None = None
    category: _Name | None = None
    system: str | None = None
    prompt: str | None = None
    turns: list[str] = []
    messages: list[OpenAIMessage] = []
    tools: list[dict[str, Any]] | None = None
    tool_choice: Literal["auto", "none"] | None = None
    functions: None = None  # an older form of `tools`, which is refused
    documents: list[dict[str, Any]] | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of the chat template."""
        tools = None if self.tool_choice == "none" else self.tools
        own = {"tools": tools, "documents": self.documents}
        return (self.chat_template_kwargs or {}) | {k: v for k, v in own.items() if v}


@dataclass(frozen=True, slots=True)
class _HubFile:
    """A JSONL file of a repository on the hub."""

    repository: str
    file: str
    category: str | None = None  # of all rows; None if each row has its own
    id: str | None = None  # key of a row's id; None to number rows from 0 on
    prompt: str = "prompt"  # key of the prompt in rows without "turns"
    prefix: str = ""  # of ids
    kind: str = "dataset"  # of the repository, or "space"


_COLLECTION = "RedHatAI/speculator_benchmarks"
_MT_BENCH = _HubFile(
    "lmsys/mt-bench",
    "data/mt_bench/question.jsonl",
    id="question_id",
    prefix="mt-bench/",
    kind="space",
)
# The authors' repository has Parquet files, which would need another library.
_GSM8K = _HubFile("DaertML/gsm8k-jsonl", "test.jsonl", "gsm8k", prompt="question", prefix="gsm8k/")
_SPEC_BENCH = tuple(
    _HubFile(_COLLECTION, f"{name}.jsonl", name, prefix=f"{name}/")
    for name in ("translation", "summarization", "qa", "math_reasoning", "rag")
)
_ON_THE_HUB: dict[str, tuple[_HubFile, ...]] = {
    "mt-bench": (_MT_BENCH,),
    "humaneval": (_HubFile(_COLLECTION, "HumanEval.jsonl", "humaneval", id="task_id"),),
    "gsm8k": (_GSM8K,),
    "spec-bench": (_MT_BENCH, *_SPEC_BENCH),
}
NAMES = (BUILTIN, *_ON_THE_HUB)


def load(name: str, *, offline: bool = False) -> tuple[Row, ...]:
    """Return the conversations of a suite, a JSONL file or standard input ("-"), at least one.

    A file with the name of a suite is ./NAME.  With `offline`, only the hub's cache is used.

    Raises:
        UsageError: there is no such suite or file, or a row is invalid.
        LadeError: a suite cannot be fetched.
    """
    if name == BUILTIN:
        text = resources.files(__package__).joinpath("suites.jsonl").read_text(encoding="utf-8")
        return tuple(_parse(text, name).values())
    if name in _ON_THE_HUB:
        return _fetch(name, offline)
    is_path = os.sep in name or name.endswith((".jsonl", ".json")) or name == STDIN
    if not (is_path or os.path.exists(name)):
        known = ", ".join(NAMES)
        raise UsageError(f"there is no prompt suite or file {name!r}; use {known} or a .jsonl file")
    rows = read_rows(name)
    lines: dict[str, int] = {}
    for number, row in rows.items():
        if (first := lines.setdefault(row.id, number)) != number:
            raise UsageError(
                f"{display_name(name)}, lines {first} and {number}: both rows have the id"
                f" {row.id!r}; give each its own"
            )
    return tuple(rows.values())


def some(rows: Sequence[Row], limit: int | None) -> tuple[Row, ...]:
    """Return at most `limit` rows: the first of every category, then the second, and so on."""
    if limit is None:
        return tuple(rows)
    by_category: dict[str, list[Row]] = {}
    for row in rows:
        by_category.setdefault(row.category, []).append(row)
    in_turn = chain.from_iterable(zip_longest(*by_category.values()))
    return tuple(row for row in in_turn if row is not None)[:limit]


def row_notices(rows: Sequence[Row], system: str | None) -> list[str]:
    """Return a line about rows that ignore the system message of the command line."""
    count = sum(row.has_system for row in rows)
    if system is None or not count:
        return []
    which = "all rows" if count == len(rows) else f"{count} of {len(rows)} rows"
    return [f"--system is not for {which}, which have their own system message"]


def display_name(name: str) -> str:
    """Return the name of a prompt file, or of standard input, in an error message."""
    return "standard input" if name == STDIN else f"the prompt file {name}"


def line_id(line: int) -> str:
    """Return the id of a row without one."""
    return f"line-{line}"


def read_text(name: str) -> str:
    """Return the text of a prompt file, or of standard input.

    Raises:
        UsageError: it cannot be read, or is not text; the message names it and the fix.
    """
    if name != STDIN:
        return files.read_text(name, "prompt file")
    if sys.stdin is None:
        raise UsageError("standard input is closed; name a file in place of -")
    try:
        return files.decode(files.read_stream(sys.stdin.buffer), display_name(name))
    except OSError as error:
        raise UsageError(f"{display_name(name)} cannot be read: {error.strerror}") from error


def read_rows(name: str) -> dict[int, Row]:
    """Return the rows of a JSONL file, or of standard input, by line number.

    Raises:
        UsageError: it cannot be read, a row is invalid, or there is none.
    """
    rows = _parse(read_text(name), display_name(name))
    if not rows:
        raise UsageError(f"{display_name(name)} has no prompts; {EXAMPLE}")
    return rows


def rows_of(text: str) -> dict[int, Row]:
    """Return the rows of standard input by line number.

    There are none if a line is not a JSON object with a prompt; then the input is one text.

    Raises:
        UsageError: a row is invalid.
    """
    lines = [line for line in text.split("\n") if line.strip()]
    for line in lines:
        try:
            values = json.loads(line)
        except (ValueError, RecursionError):
            return {}
        if not (isinstance(values, dict) and values.keys() & {"prompt", "turns", "messages"}):
            return {}
    return _parse(text, display_name(STDIN))


def _parse(text: str, where: str) -> dict[int, Row]:
    """Return rows by line number, starting at 1; unknown keys and blank lines are ignored."""
    rows: dict[int, Row] = {}
    # Not `splitlines`, since JSON strings may contain other line separators.
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            read = _Line.model_validate_json(line)
            turns, start = _turns_and_start(read)
        except ValueError as error:
            problem = flaw(error) if isinstance(error, ValidationError) else error
            raise UsageError(f"{where}, line {number}: {problem}; {EXAMPLE}") from error
        row_id, category = (name and name.strip() for name in (read.id, read.category))
        name = row_id or line_id(number)
        rows[number] = Row(name, category or "all", turns, tuple(start), read.arguments)
    return rows


def _turns_and_start(line: _Line) -> tuple[tuple[str, ...], list[ChatMessage]]:
    """Return the user's texts to be answered, and the messages before them.

    Raises:
        ValueError: the line has none, or contradicts itself; the message says why.
    """
    system = [] if line.system is None else [{"role": "system", "content": line.system}]
    names = [name for name in ("prompt", "turns", "messages") if getattr(line, name)]
    if len(names) > 1:
        raise ValueError(f"it has {names[0]!r} and {names[1]!r}; keep one of them")
    if turns := tuple(line.turns) if line.prompt is None else (line.prompt,):
        if not all(map(str.strip, turns)):
            raise ValueError("a prompt is blank")
        return turns, [*system]
    if not line.messages:
        raise ValueError("it has no 'prompt', 'turns' or 'messages'")
    for number, message in enumerate(line.messages, start=1):
        if message.role not in ("system", "developer"):
            continue
        if number > 1:
            raise ValueError(f"message {number} is a {message.role} message, which stands first")
        if system:
            raise ValueError(f"it has 'system' and a {message.role} message; keep one of them")
    last = line.messages[-1]
    answerable = last.role == "tool" or (last.role == "user" and last.text.strip())
    if not answerable:
        raise ValueError(
            f"the last message is the {last.role}'s, and must be a text of the user's, or a tool's"
        )
    return (), [*system, *for_template(line.messages)]


def _fetch(name: str, offline: bool) -> tuple[Row, ...]:
    """Return the rows of a suite of the hub, from its cache if possible."""
    from huggingface_hub import errors

    rows: list[Row] = []
    try:
        for source in _ON_THE_HUB[name]:
            lines = _path(source, offline).read_text(encoding="utf-8").split("\n")
            for number, line in enumerate(filter(str.strip, lines)):
                row = json.loads(line)
                own = str(row[source.id]) if source.id else str(number)
                turns = row.get("turns") or [row[source.prompt]]
                category = source.category or row["category"]
                rows.append(Row(source.prefix + own, category, tuple(turns)))
    except (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled) as error:
        from .models.hub import not_fetched

        why = not_fetched(offline)
        raise LadeError(f"the suite {name} is not on this machine, and {why}; {FIX}") from error
    except (KeyError, TypeError, json.JSONDecodeError) as error:
        raise LadeError(f"the suite {name} was changed on the hub; {FIX}") from error
    except Exception as error:  # the hub's own errors, its HTTP library's, the disk's
        reason = describe_error(error)
        raise LadeError(f"the suite {name} cannot be fetched: {reason}; {FIX}") from error
    return tuple(rows)


def _path(source: _HubFile, offline: bool) -> Path:
    """Return the path of a source's file, downloading it if necessary."""
    from huggingface_hub import hf_hub_download, try_to_load_from_cache

    from .models.hub import is_online

    query = {"repo_id": source.repository, "filename": source.file, "repo_type": source.kind}
    # A cached file is never updated, so that figures stay comparable.
    if isinstance(cached := try_to_load_from_cache(**query), str):
        return Path(cached)
    return Path(hf_hub_download(**query, local_files_only=not is_online(offline)))
