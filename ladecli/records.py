"""Files that a user wants of an answer, beside the answer: a trace, a picture, a page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from . import outputs
from .visualize import View

if TYPE_CHECKING:
    from .options import Request
    from .session import Session, Settings

OPTIONS = ("trace", "svg", "html")


def wanted(request: Request) -> bool:
    """Whether there are any."""
    return any(getattr(request, name) for name in OPTIONS)


def check(request: Request) -> None:
    """Refuse files that cannot be written, before a model is loaded.

    Raises:
        UsageError: the message names the option and the fix.
    """
    for option, path in _named(request):
        outputs.check(path, option)
    check_apart(request, 1)


def check_apart(request: Request, answers: int) -> None:
    """Refuse files of which two would be one, or that would replace a prompt.

    Args:
        request: names them.
        answers: how many there will be; each has files of its own.

    Raises:
        UsageError: naming both options.
    """
    written = [
        (option, outputs.numbered(path, number))
        for number in range(1, answers + 1)
        for option, path in _named(request)
    ]
    if request.pool_file:
        written.append(("--pool-file", Path(request.pool_file).expanduser()))
    prompts = [("--prompt-file", Path(name).expanduser()) for name in request.read_files]
    outputs.check_apart(written, prompts)


def _named(request: Request) -> list[tuple[str, Path]]:
    """The options that were given, and the files that they name."""
    return [
        (f"--{name}", Path(value).expanduser())
        for name in OPTIONS
        if (value := getattr(request, name))
    ]


def views(
    request: Request,
    session: Session,
    settings: Settings,
    ids: Sequence[int],
    plain_step: float | None,
    number: int = 1,
) -> list[View]:
    """What writes the files of one answer.

    Args:
        request: names them.
        session: the model at work.
        settings: how the answer is decoded.
        ids: the prompt.
        plain_step: seconds of a plain step, if it was measured.
        number: of the answer, from 1 on; each has files of its own.
    """
    if not wanted(request):
        return []
    from .export import Exporter
    from .trace import Header, TraceWriter, describe, speller

    tokenizer, name = session.loaded.tokenizer, session.loaded.name
    prompt = tokenizer.decode(list(ids), skip_special_tokens=False)

    def path(value: str | None) -> Path | None:
        return outputs.numbered(Path(value).expanduser(), number) if value else None

    made: list[View] = []
    if trace := path(request.trace):
        header = Header(
            model=name,
            prompt=prompt,
            prompt_tokens=len(ids),
            settings=describe(settings),
            plain_step=plain_step,
        )
        made.append(TraceWriter(trace, header, speller(tokenizer)))
    svg, html = path(request.svg), path(request.html)
    if svg or html:
        made.append(Exporter(svg, html, name, prompt, plain_step))
    return made
