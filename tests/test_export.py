"""Exports: files that stand alone, hold the text once, and replace what was there as a whole."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest
from rich.cells import cell_len

from ladecli.errors import LadeError
from ladecli.events import Ended, Piece, TextEvent, TextStep
from ladecli.export import COLUMNS, Exporter

from .recording import PROMPT, events_of

SVG = "{http://www.w3.org/2000/svg}"
NAMESPACE = 'xmlns="http://www.w3.org/2000/svg"'


def step(*pieces: tuple[str, str | None]) -> TextStep:
    made = tuple(Piece(text, source) for text, source in pieces)
    return TextStep(made, tuple(range(len(made))), 9, 8, 0.5)


ODD: list[TextEvent] = [
    step(("\n\n<b>&amp;\"'", None)),
    step((" 你好世界", "trajectory"), (" 😀 café", "context"), ("\t]]>", None)),
    step(("\x1b[31m\x07\ud800\uffff", "recycled"), (" new", "something new"), ("\r\n", "jacobi")),
    Ended("interrupted", " rest 👩\u200d👧"),
]
PLAIN = "\n\n<b>&amp;\"' 你好世界 😀 café\t]]>[31m\ufffd\ufffd new\n rest 👩\u200d👧"


class Page(HTMLParser):
    """What a browser makes of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.texts: dict[str, str] = {}
        self.colours: list[tuple[str, str]] = []
        self._open: list[str] = []
        self._class = ""
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag != "meta":
            self._open.append(tag)
        self._class = dict(attrs).get("class") or ""

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag
        self._class = ""

    def handle_data(self, data: str) -> None:
        for tag in self._open:
            self.texts[tag] = self.texts.get(tag, "") + data
        self.colours.append((data, self._class))


def exported(folder: Path, events: list[TextEvent], prompt: str = "def") -> tuple[str, str]:
    svg, html = folder / "x.svg", folder / "x.html"
    exporter = Exporter(svg, html, "a <model>", prompt)
    for event in events:
        exporter.show(event)
    exporter.finish()
    return svg.read_text(encoding="utf-8"), html.read_text(encoding="utf-8")


def svg_lines(text: str) -> list[str]:
    """The lines of a picture, put together again from where their parts stand."""
    lines: dict[float, str] = {}
    for element in ElementTree.fromstring(text).iter(f"{SVG}text"):
        y, x = float(element.attrib["y"]), float(element.attrib["x"])
        line = lines.get(y, "")
        column = round((x - 20) / 8.4)
        assert column >= cell_len(line), "parts overlap"
        length = float(element.attrib["textLength"]) / 8.4
        assert length == pytest.approx(cell_len(element.text or ""), abs=0.01)
        lines[y] = line + " " * (column - cell_len(line)) + (element.text or "")
    return [lines.get(float(y), "") for y in range(34, round(max(lines)) + 1, 20)]


def test_a_page_holds_the_answer_once_with_its_figures(tmp_path: Path) -> None:
    page = Page(exported(tmp_path, ODD)[1])
    # A browser drops the first line break of a pre.
    assert page.texts["pre"] == "\ndef" + PLAIN
    assert page.texts["title"] == page.texts["h1"] == "a <model>"
    assert page.texts["footer"] == (
        "7 tokens in 3 steps · 2.33 tokens per step · 6.0 tok/s · accepted:"
        " context 1, jacobi 1, recycled 1, something new 1, trajectory 1"
    )
    body = page.texts["body"]
    assert (body.count("café"), body.count("rest")) == (1, 1)
    for part in (
        ("def", "faint"),
        (" 你好世界", "green"),
        (" 😀 café", "cyan"),
        ("[31m\ufffd\ufffd", "blue"),
        (" new", "yellow"),
        ("trajectory 1", "green"),
        ("something new 1", "yellow"),
        ("2.33 tokens per step", "bold"),
    ):
        assert part in page.colours


def test_a_picture_holds_the_answer_once_with_its_figures(tmp_path: Path) -> None:
    svg = exported(tmp_path, ODD)[0]
    assert svg_lines(svg) == [
        "a <model>",
        "",
        "def",
        "",
        "<b>&amp;\"' 你好世界 😀 café     ]]>[31m\ufffd\ufffd new",
        " rest 👩\u200d👧",
        "",
        "7 tokens in 3 steps · 2.33 tokens per step · 6.0 tok/s",
        "accepted: context 1, jacobi 1, recycled 1, something new 1, trajectory 1",
    ]
    assert re.search('class="green"[^>]*>你好世界<', svg)
    assert ">👩\u200d👧</text>" in svg  # not torn apart


@pytest.mark.parametrize("events", [ODD, list(events_of("all sources"))], ids=["odd", "demo"])
def test_nothing_comes_from_elsewhere(events: list[TextEvent], tmp_path: Path) -> None:
    svg, html = exported(tmp_path, events, PROMPT)
    assert svg.count(NAMESPACE) == 1  # a name, which nobody fetches
    for text in (svg.replace(NAMESPACE, ""), html):
        for word in ("http", "url(", "@import", "<script", "<link", "src=", "href"):
            assert word not in text
        assert "prefers-color-scheme:dark" in text
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f]", text)
    assert 'name="viewport" content="width=device-width' in html
    assert "pre-wrap" in html


def test_long_lines_are_wrapped_between_words(tmp_path: Path) -> None:
    words = " ".join(f"word{number}" for number in range(100))
    svg = exported(tmp_path, [step((words, None), (" " + "你" * 100, "context"))], "")[0]
    lines = svg_lines(svg)[2:-2]
    assert all(cell_len(line) <= COLUMNS for line in lines)
    assert " ".join(line for line in lines if "w" in line).split("你")[0].split() == words.split()
    assert "".join(lines).count("你") == 100
    width = float(ElementTree.fromstring(svg).attrib["width"])
    assert width == pytest.approx(COLUMNS * 8.4 + 40, abs=1)


def test_every_colour_is_defined_in_light_and_dark(tmp_path: Path) -> None:
    for text in exported(tmp_path, ODD):
        used = {name for names in re.findall('class="([^"]+)"', text) for name in names.split()}
        for name in used - {"bold"}:
            assert len(re.findall(rf"\.{name}{{(?:color|fill):#", text)) == 2, name
        assert ".bold{" in text


def test_an_answer_that_never_came(tmp_path: Path) -> None:
    svg, html = exported(tmp_path, [])
    assert "def" in svg_lines(svg)
    assert Page(html).texts["pre"] == "\ndef"


def test_only_what_was_asked_for_is_written(tmp_path: Path) -> None:
    Exporter(None, tmp_path / "x.html", "m", "p").finish()
    assert [path.name for path in tmp_path.iterdir()] == ["x.html"]


def test_what_was_there_stays_until_the_new_file_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = tmp_path / "x.svg"
    old.write_text("old")
    link = tmp_path / "link.svg"
    link.symlink_to(old)

    def full(self: Path, *_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", full)
        with pytest.raises(LadeError, match=r"^--svg .* cannot be written: No space left on"):
            Exporter(old, None, "m", "p").finish()
    assert old.read_text() == "old"
    assert {path.name for path in tmp_path.iterdir()} == {"x.svg", "link.svg"}
    Exporter(link, None, "m", "p").finish()
    assert link.is_symlink()
    assert old.read_text(encoding="utf-8").startswith("<svg")


def test_devices_are_not_replaced(tmp_path: Path) -> None:
    Exporter(Path("/dev/null"), None, "m", "p").finish()
    assert Path("/dev/null").is_char_device()
