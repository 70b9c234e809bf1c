"""The field's suites, from the hub: fetched once, and from the cache afterwards."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..errors import LadeError, UsageError
from .rows import Keys, Row, parse

YOURS = "give prompts of your own by --prompts FILE.jsonl"
"""What helps where a suite cannot be had."""


@dataclass(frozen=True, slots=True)
class Part:
    """One file of the hub, and what its rows are called here.

    Attributes:
        repository: OWNER/NAME.
        kind: of the repository: "dataset" or "space".
        file: its path in there.
        keys: where its rows keep what.
        category: of all rows; None where each names its own.
        prefix: of the rows' ids; what follows it is their own id or, where `keys.id` is empty,
            their place from 0 on.
    """

    repository: str
    kind: str
    file: str
    keys: Keys
    category: str | None = None
    prefix: str = ""


_MT_BENCH = Part(
    repository="lmsys/mt-bench",
    kind="space",
    file="data/mt_bench/question.jsonl",
    keys=Keys(id="question_id"),
    prefix="mt-bench/",
)
_BENCHMARKS = "RedHatAI/speculator_benchmarks"
"""HumanEval and the parts of Spec-Bench, a file each; Spec-Bench's own home is not the hub."""
_HUMANEVAL = Part(_BENCHMARKS, "dataset", "HumanEval.jsonl", Keys(id="task_id"), "humaneval")
# The repository of its authors holds Parquet, for which one would need another library.
_GSM8K = Part(
    "DaertML/gsm8k-jsonl", "dataset", "test.jsonl", Keys("", "question"), "gsm8k", "gsm8k/"
)
_SPEC_BENCH = tuple(
    Part(_BENCHMARKS, "dataset", f"{name}.jsonl", Keys(id=""), name, f"{name}/")
    for name in ("translation", "summarization", "qa", "math_reasoning", "rag")
)
_SUITES: dict[str, tuple[int, tuple[Part, ...]]] = {
    "mt-bench": (80, (_MT_BENCH,)),
    "humaneval": (164, (_HUMANEVAL,)),
    "gsm8k": (1319, (_GSM8K,)),
    "spec-bench": (480, (_MT_BENCH, *_SPEC_BENCH)),
}
"""How many rows every suite has, and what it is made of."""
NAMES = tuple(_SUITES)
"""The suites that can be fetched."""


def fetch(name: str, *, offline: bool, progress: bool) -> tuple[Row, ...]:
    """The rows of a suite that comes from the hub.

    Args:
        name: one of `NAMES`.
        offline: whether to take it from the cache or not at all.
        progress: whether a download shows a bar on stderr.

    Raises:
        LadeError: it cannot be had, or the hub holds something else by now.
    """
    count, parts = _SUITES[name]
    rows: list[Row] = []
    for part in parts:
        rows += _rows(part, _text(name, part, offline, progress))
    if len(rows) != count:
        raise LadeError(
            f"the suite {name} was changed on the hub ({len(rows)} rows, not {count}); {YOURS}"
        )
    return tuple(rows)


def _text(suite: str, part: Part, offline: bool, progress: bool) -> str:
    """What a file holds; whatever keeps it from being had becomes one line."""
    try:
        with _bars(progress):
            path = _path(part, offline)
        return path.read_text(encoding="utf-8")
    except Exception as error:  # the hub's own errors, its HTTP library's, the disk's
        raise LadeError(f"{_explained(suite, part, error, offline)}; {YOURS}") from error


def _path(part: Part, offline: bool) -> Path:
    """Where the file lies, downloaded if it has to be."""
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


def _explained(suite: str, part: Part, error: Exception, offline: bool) -> str:
    """What went wrong, in a few words."""
    from huggingface_hub import errors

    where = f"{part.repository}, {part.file}"
    if isinstance(error, errors.LocalEntryNotFoundError | errors.OfflineModeIsEnabled):
        why = "--offline forbids to fetch it" if offline else "the hub cannot be reached"
        return f"the suite {suite} is not on this machine, and {why}"
    if isinstance(error, errors.RepositoryNotFoundError | errors.EntryNotFoundError):
        return f"the hub no longer offers the suite {suite} ({where})"
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return f"no space left on disk for the suite {suite}"
    words = str(error).strip().splitlines()
    return f"the suite {suite} cannot be fetched: {words[0] if words else type(error).__name__}"


def _rows(part: Part, text: str) -> Iterator[Row]:
    """The rows of a file, under the names that they have in a suite."""
    try:
        found = parse(text, f"{part.repository}, {part.file}", part.keys).values()
    except UsageError as error:  # it is no fault of the user's
        raise LadeError(f"{error}; {YOURS}") from error
    for place, row in enumerate(found):
        own = row.id if part.keys.id else str(place)
        yield Row(part.prefix + own, part.category or row.category, row.turns)


@contextlib.contextmanager
def _bars(progress: bool) -> Iterator[None]:
    """Keep the hub's bars out of the terminal, unless they are wanted."""
    from huggingface_hub.utils import (
        are_progress_bars_disabled,
        disable_progress_bars,
        enable_progress_bars,
    )

    if progress or are_progress_bars_disabled():
        yield
        return
    disable_progress_bars()
    try:
        yield
    finally:
        enable_progress_bars()
