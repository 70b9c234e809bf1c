"""Exports: files that stand alone, and hold the text once, in its colours."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path
from xml.etree import ElementTree

import pytest
from rich.cells import cell_len

from ladecli.events import Ended, TextEvent
from ladecli.metrics import Tally
from ladecli.trace.export import COLUMNS, Exporter
from ladecli.visualize import together

from .recording import step

SVG = "{http://www.w3.org/2000/svg}"

ODD: list[TextEvent] = [
    step(("\n\n<b>&amp;\"'", None)),
    step((" 你好世界", "trajectory"), (" 😀 café", "context"), (" ]]>", None)),
    step(("\x1b[31m\x07\ud800\uffff", "recycled"), (" new", "something new"), ("\r\n", "jacobi")),
    Ended("interrupted", " rest 👩\u200d👧"),
]
PLAIN = "def\n\n<b>&amp;\"' 你好世界 😀 café ]]>[31m\ufffd\ufffd new\n rest 👩\u200d👧"
FIGURES = ["7 tokens in 3 steps · 2.33 tokens per step · 6.0 tok/s"]
FIGURES += ["accepted: context 1, jacobi 1, recycled 1, something new 1, trajectory 1"]


def exported(folder: Path, events: list[TextEvent], prompt: str = "def") -> tuple[str, str]:
    svg, html = folder / "x.svg", folder / "x.html"
    tally = Tally()
    told = "a <model>", prompt, tally
    with together(tally, Exporter(svg, "svg", *told), Exporter(html, "html", *told)) as show:
        for event in events:
            show(event)
    return svg.read_text(encoding="utf-8"), html.read_text(encoding="utf-8")


def svg_lines(text: str) -> list[str]:
    """The lines of a picture, put together again from where their parts are."""
    lines: dict[float, str] = {}
    for element in ElementTree.fromstring(text).iter(f"{SVG}text"):
        if not (clip := element.attrib.get("clip-path", "")):
            continue  # the title
        number = int(clip.rstrip(")").rpartition("-")[2])
        line = lines.get(number, "")
        content = (element.text or "").replace("\u00a0", " ")
        column = round(float(element.attrib["x"]) / 12.2)
        assert column >= cell_len(line), "parts overlap"
        length = float(element.attrib["textLength"]) / 12.2
        assert length == pytest.approx(cell_len(content), abs=0.01)
        lines[number] = line + " " * (column - cell_len(line)) + content
    return [lines.get(number, "").rstrip() for number in range(round(max(lines)) + 1)]


def test_a_page_holds_the_answer_once_with_its_figures(tmp_path: Path) -> None:
    page = exported(tmp_path, ODD)[1]
    assert "<title>a &lt;model&gt;</title>" in page
    (text,) = re.findall("<pre>(.*)</pre>", page, re.DOTALL)
    # A browser drops the first line break of a pre.
    said = unescape(re.sub("<[^>]*>", "", text)).strip()
    assert said.split("\n\n" + FIGURES[0]) == [PLAIN, "\n" + FIGURES[1]]
    sheet = dict(re.findall(r"\.(r\d+) {color: (#\w+)", page))
    spans = {shown: sheet.get(style) for style, shown in re.findall(r'"(r\d+)">([^<]*)<', text)}
    assert spans[" 你好世界"] == spans["trajectory 1"] != spans[" 😀 café"]


def test_a_picture_holds_the_answer_once_with_its_figures(tmp_path: Path) -> None:
    svg = exported(tmp_path, ODD)[0]
    assert svg_lines(svg) == [*PLAIN.split("\n"), "", *FIGURES]
    assert "👩\u200d👧</text>" in svg  # not torn apart
    assert "a\u00a0<model>" in unescape(svg)


def test_files_stand_alone_and_hold_no_control_characters(tmp_path: Path) -> None:
    for text in exported(tmp_path, ODD):
        for word in ("http://", "https://", "@import", "<script", "<link", "src=", "href"):
            assert word not in text.replace('xmlns="http://www.w3.org/2000/svg"', "")
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f]", text)


def test_long_lines_are_wrapped_between_words(tmp_path: Path) -> None:
    words = " ".join(f"word{number}" for number in range(100))
    svg, html = exported(tmp_path, [step((words, None), (" " + "你" * 100, "context"))], "")
    lines = svg_lines(svg)[:-2]
    assert all(cell_len(line) <= COLUMNS for line in lines)
    assert " ".join(line for line in lines if "w" in line).split("你")[0].split() == words.split()
    assert "".join(lines).count("你") == 100
    assert words in html
