"""Prompt suites: the builtin one, four of the field's from the hub, and the user's JSONL files.

The builtin suite was written for this program: chat, code, maths, summary, translation, retrieval.
"""

from __future__ import annotations

import difflib
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from . import files
from .errors import LadeError, UsageError

BUILTIN = "builtin"
STDIN = "-"
"""The name of standard input."""
FIX = "give prompts of your own by --prompts FILE.jsonl"
EXAMPLE = 'write rows like {"prompt": "Hello"}'


@dataclass(frozen=True, slots=True)
class Row:
    """One conversation: the user's texts, at least one and none blank; `id` is unique."""

    id: str
    category: str
    turns: tuple[str, ...]


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


def load(name: str, *, offline: bool = False) -> tuple[Row, ...]:
    """The conversations of a suite, or of a file, at least one.

    Args:
        name: one of `NAMES`, the path of a JSONL file, or "-" for standard input; a file with the
            name of a suite is ./NAME.
        offline: use the hub's cache only.

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
    if not is_path and not (name and os.path.exists(name)):
        near = difflib.get_close_matches(name.lower().replace("_", "-"), NAMES, n=1)
        fix = f"did you mean {near[0]}?" if near else f"use {', '.join(NAMES)} or a .jsonl file"
        raise UsageError(f"there is no prompt suite or file {name!r}; {fix}")
    rows = read_rows(name)
    lines: dict[str, int] = {}
    for number, row in rows.items():
        if (first := lines.setdefault(row.id, number)) != number:
            raise UsageError(
                f"{spoken(name)}, lines {first} and {number}: both rows have the id {row.id!r};"
                " give each its own"
            )
    return tuple(rows.values())


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
    rows = _parse(read_text(name), spoken(name))
    if not rows:
        raise UsageError(f"{spoken(name)} has no prompts; {EXAMPLE}")
    return rows


def _parse(text: str, where: str) -> dict[int, Row]:
    """Rows by line number, from 1 on; unknown keys and blank lines are ignored."""
    # Strings of JSON may contain other line separators than this one.
    lines = enumerate(text.split("\n"), start=1)
    return {n: _row(line, n, f"{where}, line {n}") for n, line in lines if line.strip()}


def _row(line: str, number: int, where: str) -> Row:
    """A row of a file; `prompt` comes first where it has turns, too."""
    try:
        found: Any = json.loads(line)
        json.dumps(found, ensure_ascii=False).encode()  # a lone surrogate is no text
    except (ValueError, RecursionError):
        raise UsageError(f"{where}: it is not JSON; {EXAMPLE}") from None
    if not isinstance(found, dict) or not {"prompt", "turns"} & found.keys():
        raise UsageError(f"{where}: it has no 'prompt' and no 'turns'; {EXAMPLE}")
    turns = found.get("turns") if found.get("prompt") is None else [found["prompt"]]
    if not isinstance(turns, list) or not turns:
        raise UsageError(f"{where}: 'turns' is no list of texts; {EXAMPLE}")
    if not all(isinstance(turn, str) and turn.strip() for turn in turns):
        raise UsageError(f"{where}: a prompt is empty or no text; {EXAMPLE}")
    names = {"id": name_of(number), "category": "all"}
    for key in names:
        if isinstance(value := found.get(key), dict | list | bool):
            raise UsageError(f"{where}: {key!r} is no text; write one, or leave it out")
        if value is not None:
            names[key] = str(value).strip() or names[key]
    return Row(names["id"], names["category"], tuple(turns))


def _fetch(name: str, offline: bool) -> tuple[Row, ...]:
    """The rows of a suite of the hub, from its cache where they are there.

    Raises:
        LadeError: it cannot be fetched, or its files changed on the hub.
    """
    count, sources = _ON_THE_HUB[name]
    rows: list[Row] = []
    try:
        for source in sources:
            lines = _path(source, offline).read_text(encoding="utf-8").split("\n")
            for number, line in enumerate(filter(str.strip, lines)):
                row = json.loads(line)
                own = str(row[source.id]) if source.id else str(number)
                turns = row.get("turns") or [row[source.prompt]]
                category = source.category or row["category"]
                rows.append(Row(source.prefix + own, category, tuple(turns)))
        changed = len(rows) != count
    except (KeyError, TypeError, json.JSONDecodeError):
        changed = True
    except Exception as error:  # the hub's own errors, its HTTP library's, the disk's
        raise LadeError(f"{_reason(name, error, offline)}; {FIX}") from error
    if changed:
        raise LadeError(f"the suite {name} was changed on the hub; {FIX}")
    return tuple(rows)


def _path(source: Source, offline: bool) -> Path:
    """Where the file is, after a download if need be."""
    from huggingface_hub import constants, errors, hf_hub_download

    from .model_files import hub_answers

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
