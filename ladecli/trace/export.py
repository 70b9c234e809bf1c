"""The files beside an answer: --trace, and --svg and --html with the answer in its colours."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.text import Text

from .. import files
from ..errors import UsageError, printable
from ..events import TextEvent, pieces_of
from ..metrics import Tally
from ..view.recorded import as_html, as_svg, recording_console
from ..visualize import Sections, View, statistics_line

if TYPE_CHECKING:
    from ..options.answer import FileOptions
    from ..session.session import Session, Settings

OPTIONS = ("trace", "svg", "html")
"""Those that name a file."""
COLUMNS = 88
"""Cells of a line in the SVG."""


def check(request: FileOptions, answers: int = 1) -> None:
    """Refuse files that cannot be written, or would replace each other or a file that is read.

    Args:
        request: names them.
        answers: each of which has files of its own.

    Raises:
        UsageError: the message names the option and the fix.
    """
    written = [
        (f"--{name}", path)
        for number in range(1, answers + 1)
        for name in OPTIONS
        if (path := _path(request, name, number))
    ]
    if request.pool_file:
        written.append(("--pool-file", files.expanded(request.pool_file)))
    taken = {files.expanded(name).resolve(): each for name, each in request.read_files.items()}
    for option, path in written:
        files.check(path, option)
        if files.is_device(path):
            continue
        first = taken.setdefault(path.resolve(), option)
        if first != option:
            raise UsageError(f"{first} and {option} are the same file, {path}; name another")


def _path(request: FileOptions, name: str, number: int) -> Path | None:
    """The file of answer `number`: x.svg, x-2.svg, x-3.svg; a device takes all of them."""
    value = getattr(request, name)
    if not value:
        return None
    path = files.expanded(value)
    if number == 1 or files.is_device(path):
        return path
    return path.with_name(f"{path.stem}-{number}{path.suffix}")


def views(
    request: FileOptions,
    session: Session,
    settings: Settings,
    ids: Sequence[int],
    tally: Tally,
    number: int = 1,
) -> list[View]:
    """The writers of an answer's files.

    Args:
        request: names them.
        session: the model at work.
        settings: how the answer is decoded.
        ids: the prompt.
        tally: its figures.
        number: of the answer, from 1 on; each has files of its own.
    """
    made: list[View] = []
    paths = {option: _path(request, option, number) for option in OPTIONS}
    name, decode = session.loaded.name, session.loaded.tokenizer.decode
    if trace := paths.pop("trace"):
        from ..session.text import speller
        from .format import Header, TraceWriter

        header = Header(
            model=name,
            prompt=decode(list(ids), skip_special_tokens=False),
            prompt_tokens=len(ids),
            settings=describe(settings),
            calibration=tally.calibration,
        )
        made.append(TraceWriter(trace, header, speller(session.loaded.tokenizer)))
    for option, path in paths.items():
        if path:
            prompt = decode(list(ids), skip_special_tokens=True)
            made.append(Exporter(path, option, name, prompt, tally))
    return made


def decoding(settings: Settings) -> dict[str, Any]:
    """How an answer is decoded, as `--json` has it; None for what its strategy does not have."""
    look, drafts = settings.lookahead, settings.strategy == "lookahead"
    values = {"window": look.window, "ngram": look.ngram, "guesses": look.guesses}
    values["budget"] = look.step_limit
    return {
        "strategy": settings.strategy,
        **{name: value if drafts else None for name, value in values.items()},
        "sources": list(look.sources) if drafts else [],
    }


def describe(settings: Settings) -> dict[str, Any]:
    """The settings of an answer as a header holds them."""
    sampling = asdict(settings.sampling)
    return decoding(settings) | sampling | {"max_new_tokens": settings.max_new_tokens}


class Exporter:
    """Collects an answer, and writes it when it is over, also when it was interrupted.

    Args:
        path: where to.
        option: "svg" for an image, "html" for a page.
        title: of the file, usually the model's name.
        prompt: what the answer continues.
        tally: its figures.
    """

    def __init__(self, path: Path, option: str, title: str, prompt: str, tally: Tally) -> None:
        self._path, self._option, self._title = path, option, _clean(title)
        self._text = Text.assemble((_clean(prompt), "dim"))
        self._tally = tally
        self._sections = Sections(reasoning=True)

    def show(self, event: TextEvent) -> None:
        """Take what the event adds."""
        for piece in pieces_of(event):
            for span in self._sections.of(piece):
                self._text.append(_clean(span.text), span.style)

    def finish(self) -> None:
        """Write the file.

        Raises:
            LadeError: it cannot be written.
        """
        wraps, console = self._option == "svg", recording_console(COLUMNS)
        figures = statistics_line(self._tally, COLUMNS)
        console.print(self._text, Text(), figures, sep="\n", soft_wrap=not wraps)
        page = (as_svg if wraps else as_html)(console, self._title)
        files.write(self._path, page, f"--{self._option}")


def _clean(text: str) -> str:
    """`text` without what could drive a terminal, or what XML cannot hold, escaped or not."""
    return re.sub("[\ud800-\udfff\ufffe\uffff]", "\N{REPLACEMENT CHARACTER}", printable(text))
