"""`--trace`: the file that records an answer, and the settings in its header."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import files
from ..errors import UsageError

if TYPE_CHECKING:
    from ..options.answer import FileOptions
    from ..session.session import Session, Settings
    from .format import TraceWriter


def check(request: FileOptions, answers: int = 1) -> None:
    """Check that the files can be written, and would not replace a file that is read.

    Args:
        request: the files.
        answers: the number of answers; each has its own file.

    Raises:
        UsageError: the message names the option and the fix.
    """
    sources = {files.expanded(name).resolve(): read for name, read in request.read_files.items()}
    for path in filter(None, (_path(request, number) for number in range(1, answers + 1))):
        files.check(path, "--trace")
        if not files.is_device(path) and (read := sources.get(path.resolve())):
            raise UsageError(f"{read} and --trace are the same file, {path}; name another")


def _path(request: FileOptions, number: int) -> Path | None:
    """Return the file of answer `number`: x.jsonl, x-2.jsonl; a device receives all of them."""
    if not request.trace:
        return None
    path = files.expanded(request.trace)
    if number == 1 or files.is_device(path):
        return path
    return path.with_name(f"{path.stem}-{number}{path.suffix}")


def writers(
    request: FileOptions,
    session: Session,
    settings: Settings,
    ids: Sequence[int],
    number: int = 1,
) -> list[TraceWriter]:
    """Return the writer of an answer's trace; an empty list without --trace.

    Args:
        request: names the file.
        session: of the model.
        settings: of the answer.
        ids: the prompt.
        number: of the answer, starting at 1.
    """
    if (path := _path(request, number)) is None:
        return []
    from ..session.tokens import speller
    from .format import Header, TraceWriter

    tokenizer = session.loaded.tokenizer
    header = Header(
        model=session.loaded.name,
        prompt=tokenizer.decode(list(ids), skip_special_tokens=False),
        prompt_tokens=len(ids),
        settings=describe(settings),
    )
    return [TraceWriter(path, header, speller(tokenizer))]


def decoding(settings: Settings) -> dict[str, Any]:
    """Return the decoding settings for `--json`; None for those that the strategy lacks."""
    look, drafts = settings.lookahead, settings.strategy == "lookahead"
    values = {"window": look.window, "ngram": look.ngram, "guesses": look.guesses}
    values["budget"] = look.step_limit
    return {
        "strategy": settings.strategy,
        **{name: value if drafts else None for name, value in values.items()},
        "sources": list(look.sources) if drafts else [],
    }


def describe(settings: Settings) -> dict[str, Any]:
    """Return the settings of an answer for a header."""
    sampling = asdict(settings.sampling)
    return decoding(settings) | sampling | {"max_new_tokens": settings.max_new_tokens}
