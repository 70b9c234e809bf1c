"""The field's suites, from the hub: fetched once, and from the cache afterwards."""

from __future__ import annotations

import contextlib
import errno
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from ..errors import LadeError

Fields: TypeAlias = tuple[str, str, tuple[str, ...]]
"""Id, category and turns of a row."""

FIX = "give prompts of your own by --prompts FILE.jsonl"


@dataclass(frozen=True, slots=True)
class Part:
    """One file of the hub.

    Attributes:
        repository: OWNER/NAME.
        kind: of the repository: "dataset" or "space".
        file: its path in there.
        id: key of a row's id; None to count them from 0 on.
        prompt: key of a row's prompt, where it has no turns.
        category: of all rows; None where each names its own.
        prefix: of the ids.
    """

    repository: str
    kind: str
    file: str
    id: str | None = None
    prompt: str = "prompt"
    category: str | None = None
    prefix: str = ""


_MT_BENCH = Part(
    repository="lmsys/mt-bench",
    kind="space",
    file="data/mt_bench/question.jsonl",
    id="question_id",
    prefix="mt-bench/",
)
_BENCHMARKS = "RedHatAI/speculator_benchmarks"
"""HumanEval and the parts of Spec-Bench, a file each; Spec-Bench's own home is not the hub."""
_HUMANEVAL = Part(_BENCHMARKS, "dataset", "HumanEval.jsonl", id="task_id", category="humaneval")
# The repository of its authors holds Parquet, which would need another library.
_GSM8K = Part(
    "DaertML/gsm8k-jsonl",
    "dataset",
    "test.jsonl",
    prompt="question",
    category="gsm8k",
    prefix="gsm8k/",
)
_SPEC_BENCH = tuple(
    Part(_BENCHMARKS, "dataset", f"{name}.jsonl", category=name, prefix=f"{name}/")
    for name in ("translation", "summarization", "qa", "math_reasoning", "rag")
)
_SUITES: dict[str, tuple[int, tuple[Part, ...]]] = {
    "mt-bench": (80, (_MT_BENCH,)),
    "humaneval": (164, (_HUMANEVAL,)),
    "gsm8k": (1319, (_GSM8K,)),
    "spec-bench": (480, (_MT_BENCH, *_SPEC_BENCH)),
}
"""The number of rows of every suite, and its files."""
NAMES = tuple(_SUITES)
"""The suites that can be fetched."""


def fetch(name: str, *, offline: bool, progress: bool) -> list[Fields]:
    """The rows of a suite.

    Args:
        name: one of `NAMES`.
        offline: whether only the cache may be used.
        progress: whether a download shows a bar on stderr.

    Raises:
        LadeError: it cannot be fetched, or its files changed on the hub.
    """
    count, parts = _SUITES[name]
    rows: list[Fields] = []
    try:
        for part in parts:
            with _bars(progress):
                path = _path(part, offline)
            rows += _rows(part, path.read_text(encoding="utf-8"))
    except (KeyError, TypeError, json.JSONDecodeError) as error:
        raise LadeError(f"the suite {name} was changed on the hub ({error!r}); {FIX}") from error
    except Exception as error:  # the hub's own errors, its HTTP library's, the disk's
        raise LadeError(f"{_reason(name, error, offline)}; {FIX}") from error
    if len(rows) != count:
        raise LadeError(
            f"the suite {name} was changed on the hub ({len(rows)} rows, not {count}); {FIX}"
        )
    return rows


def _rows(part: Part, text: str) -> Iterator[Fields]:
    for place, line in enumerate(filter(str.strip, text.split("\n"))):
        row = json.loads(line)
        own = str(row[part.id]) if part.id else str(place)
        turns = row.get("turns") or [row[part.prompt]]
        yield part.prefix + own, part.category or row["category"], tuple(turns)


def _path(part: Part, offline: bool) -> Path:
    """Where the file lies, after a download if need be."""
    from huggingface_hub import constants, errors, hf_hub_download

    from ..model_files import hub_answers

    asking = {"repo_id": part.repository, "filename": part.file, "repo_type": part.kind}
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
    if isinstance(error, errors.RepositoryNotFoundError | errors.EntryNotFoundError):
        return f"the hub no longer offers the suite {suite}"
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return f"no space left on disk for the suite {suite}"
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
