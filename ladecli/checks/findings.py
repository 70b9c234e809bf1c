"""What a check found: a line for people with its fix, an object for programs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field

from rich.text import Text

from ..cells import padded, styled, wrapped
from ..errors import told
from ..visualize import counted, printable

OK, NOTE, WARNING, PROBLEM = "ok", "note", "warning", "problem"
"""Levels: as it should be; worth knowing; worse than it could be; something cannot work."""
_MARKS = {OK: ("✓", "+"), NOTE: ("·", "-"), WARNING: ("!", "!"), PROBLEM: ("✗", "x")}
_STYLES = {OK: "green", NOTE: "dim", WARNING: "yellow", PROBLEM: "bold red"}
_LOUD = (WARNING, PROBLEM)
_WIDEST_NAME = 20


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        name: what.
        value: what there is, in words.
        level: `OK`, `NOTE`, `WARNING` or `PROBLEM`.
        fix: what to do about it, a command where there is one; None where there is nothing to do.
        data: the numbers behind the words, for programs.
    """

    name: str
    value: str
    level: str = OK
    fix: str | None = None
    data: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Section:
    """Findings about one subject."""

    title: str
    findings: tuple[Finding, ...]


def look(title: str, probes: Mapping[str, Callable[[], Iterable[Finding]]]) -> Section:
    """What some probes find; one that fails becomes a finding itself.

    Args:
        title: of the section.
        probes: by what they look at.
    """
    found = (finding for name, probe in probes.items() for finding in _guarded(name, probe))
    return Section(title, tuple(found))


def _guarded(name: str, probe: Callable[[], Iterable[Finding]]) -> Iterator[Finding]:
    try:
        yield from probe()
    except Exception as error:  # whatever is wrong with a machine must not end its examination
        yield Finding(name, f"could not be looked at: {told(error)}", WARNING)


def count(sections: Iterable[Section], level: str) -> int:
    """How many findings have a level."""
    return sum(finding.level == level for section in sections for finding in section.findings)


def summary(sections: Sequence[Section]) -> Text:
    """The whole in one line."""
    problems, warnings = count(sections, PROBLEM), count(sections, WARNING)
    if not problems and not warnings:
        return styled("Nothing is wrong.", "bold green")
    loud = [(problems, PROBLEM), (warnings, WARNING)]
    words = " and ".join(counted(number, level) for number, level in loud if number)
    return styled(f"{words[0].upper()}{words[1:]}.", _STYLES[PROBLEM if problems else WARNING])


def lines(sections: Iterable[Section], width: int | None, unicode: bool = True) -> Iterator[Text]:
    """The report.

    Args:
        sections: in order.
        width: of the terminal in cells; None for a pipe, where nothing wraps.
        unicode: whether the screen has more than ASCII.
    """
    for section in sections:
        yield styled(section.title, "bold")
        column = max((len(finding.name) for finding in section.findings), default=0)
        for finding in section.findings:
            yield from _finding(finding, min(column, _WIDEST_NAME), width, unicode)


def _finding(finding: Finding, column: int, width: int | None, unicode: bool) -> Iterator[Text]:
    mark = _MARKS[finding.level][0 if unicode else 1]
    head = Text("  ").append(f"{mark} ", _STYLES[finding.level])
    head.append_text(padded(Text(finding.name), column)).append("  ")
    # The level stands there as a word, too: not everybody sees colours, or knows the marks.
    word = f"{finding.level}: " if finding.level in _LOUD else ""
    indent = head.cell_len
    for line in _broken(f"{word}{finding.value}", width, indent):
        yield head + styled(line, _STYLES[finding.level] if word else "")
        head = Text(" " * indent)
    if finding.fix:
        arrow = "→ " if unicode else "-> "
        for line in _broken(arrow + finding.fix, width, indent):
            yield Text(" " * indent).append(line, "cyan")


def _broken(text: str, width: int | None, indent: int) -> list[str]:
    text = printable(text)
    if width is None:
        return [text]
    return [line.plain.strip() for line in wrapped(Text(text), max(width - indent, 20))]


def as_object(sections: Iterable[Section]) -> list[dict[str, object]]:
    """The findings for a program, each with its section."""
    return [
        {"section": section.title.lower(), **asdict(finding)}
        for section in sections
        for finding in section.findings
    ]
