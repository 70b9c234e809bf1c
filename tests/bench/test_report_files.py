"""Reports as files: well-formed, alone in the world, the same each time, escaped."""

from __future__ import annotations

import dataclasses
import functools
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

from ladecli.bench import record, report
from ladecli.bench.report import ink, sweep_charts, sweeps
from ladecli.bench.report.document import document
from ladecli.bench.report.summary import summarise
from ladecli.errors import LadeError, UsageError

from . import makers, report_results

VOID = {"meta", "br", "hr", "img", "link", "input"}


class Page(HTMLParser):
    """A page's elements and text; its end tags have to match."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data

    def ids(self) -> list[str]:
        return [found for _, attributes in self.tags if (found := attributes.get("id"))]


@functools.cache
def page_of(name: str) -> str:
    return report.as_text(report_results.ALL[name](), Path("x.html"))


@pytest.mark.parametrize("name", report_results.ALL)
def test_pages_are_well_formed_and_stand_alone(name: str) -> None:
    text = page_of(name)
    page = Page(text)
    assert not re.search(r"https?:|//[a-z]|<script|@import|<link|<img|<iframe", text)
    ids = page.ids()
    assert len(ids) == len(set(ids))
    for _, attributes in page.tags:
        for key, value in attributes.items():
            assert not key.startswith("on")
            if key in ("href", "xlink:href", "src"):
                assert value is not None
                assert value.startswith("#")
                assert value[1:] in ids
            for reference in re.findall(r"url\(#([^)]*)\)", value or ""):
                assert reference in ids


def test_a_page_has_every_chart_and_no_colour_that_one_scheme_hides() -> None:
    text = page_of("usual")
    assert text.count('<svg class="chart"') == 7
    charts = "".join(re.findall(r"<svg.*?</svg>", text, re.DOTALL))
    assert "var(--s1)" in charts
    assert not re.findall(r"(?:fill|stroke): #(?!0{6})[0-9a-f]{6}", charts)
    assert "font-family" not in charts


@pytest.mark.parametrize(
    ("name", "charts"),
    [("sweep", 7), ("three axes", 9), ("one axis", 7), ("contexts", 9), ("without runs", 0)],
)
def test_sweeps_have_their_charts(name: str, charts: int) -> None:
    assert page_of(name).count('<svg class="chart"') == charts


def test_one_repeat_says_nothing_of_how_steady_a_machine_is() -> None:
    title = "Was the machine steady?"
    assert title in page_of("usual")
    assert title not in report.as_text(makers.result(repeats=1), Path("x.html"))


def test_legends_of_long_names_have_room() -> None:
    for length, columns in ((4, 3), (20, 2), (28, 1)):
        figure, axes = ink.canvas(2.0)
        for number in range(4):
            axes.plot([0, 1], label=f"{number}".ljust(length, "x"))
        ink.legend(figure, axes, columns=3)
        (found,) = figure.legends
        assert found._ncols == columns
        assert (figure.get_figheight() > 2.0) == (columns == 1)


@pytest.mark.parametrize("suffix", [".html", ".svg"])
def test_cells_of_a_sweep_are_told_apart_in_pictures(suffix: str) -> None:
    made = report_results.grid({"budget": ("8", "16", "32", "64"), "sources": ("context", "all")})
    text = report.as_text(made, Path(f"x{suffix}"))
    chart = ElementTree.fromstring(re.findall(r"<svg.*?</svg>", text, re.DOTALL)[0])
    marks = (each for each in chart.iter() if each.tag.endswith("text"))
    named = [each.text for each in marks if (each.text or "").startswith("budget=")]
    assert sorted(named) == sorted(
        f"budget={budget} sources={sources}"
        for budget in (8, 16, 32, 64)
        for sources in ("context", "all")
    )


def test_the_axis_of_a_heat_map_has_no_value_twice() -> None:
    made = report_results.grid(
        {"budget": ("8", "16"), "sources": ("context+recycled", "context+recycled+trajectory")}
    )
    grid = next(sweeps.grids(summarise(made)))
    with ink.style():
        (axes,) = sweep_charts.heat_map(grid).axes
    assert [label.get_text() for label in axes.get_yticklabels()] == [
        "context+recycled", "context+…rajectory",
    ]  # fmt: skip
    other = dataclasses.replace(grid, columns=grid.rows, cells=(grid.cells[0][:2],) * 2)
    with ink.style():
        (axes,) = sweep_charts.heat_map(other).axes
    assert [label.get_text() for label in axes.get_xticklabels()] == [
        "conte…cycled",
        "conte…ectory",
    ]


def edges(text: str) -> list[str]:
    return re.findall(r"Few prompts make long ones, which end at the edge\.", text)


def test_intervals_that_are_cut_are_told_and_only_they() -> None:
    assert edges(page_of("three axes")) == []
    # Of categories it is said to those who do not see the chart, too.
    for noise, times in ((0.0, 0), (1.0, 3)):
        made = makers.result(noise=noise)
        assert len(edges(report.as_text(made, Path("x.html")))) == times


def test_one_is_marked_for_speed_ups_alone() -> None:
    for rows, measures in ((9, ["Speed-up"]), (6, [])):
        summary = summarise(report_results.contexts(rows=rows))
        (section,) = (s for s in document(summary).sections if s.key == "categories")
        with ink.style():
            charts = list(sweep_charts.contexts(summary, section))
        assert [c.title for c in charts] == [*measures, "Milliseconds per step", "Peak memory, GB"]
        assert [c.title for c in charts if "stroke-dasharray" in c.svg] == measures


def test_names_are_escaped_in_a_page() -> None:
    text = page_of("hostile")
    assert "<b>" not in re.sub(r"<b>[\d.×/,]+</b>", "", text)
    assert "\x1b" not in text
    assert '[red]<b>"x"|`$\\alpha$`[31m & 本*_ # no' in Page(text).text


@pytest.mark.parametrize("name", report_results.ALL)
def test_pictures_are_xml_and_stand_alone(name: str) -> None:
    text = report.as_text(report_results.ALL[name](), Path("x.svg"))
    root = ElementTree.fromstring(text)
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    for element in root.iter("{http://www.w3.org/2000/svg}text"):
        assert 0 <= float(element.attrib["x"]) <= width
        assert 0 <= float(element.attrib["y"]) <= height
    assert text.count("http") == 1  # the name of the format
    assert "prefers-color-scheme:dark" in text


def test_a_picture_says_the_answer() -> None:
    text = " ".join(
        ElementTree.fromstring(
            report.as_text(makers.result(interrupted=True), Path("x.svg"))
        ).itertext()
    )
    assert "Lookahead makes 1.5" in text
    assert "transformers' prompt lookup" in text
    assert "Interrupted: " in text


@pytest.mark.parametrize("name", report_results.ALL)
def test_markdown_has_whole_tables(name: str) -> None:
    lines = report.as_text(report_results.ALL[name](), Path("x.md")).splitlines()
    previous = 0
    for line in lines:
        cells = len(re.findall(r"(?<!\\)\|", line))
        assert (cells > 0) == line.startswith("|")
        assert previous in (0, cells) or not cells
        previous = cells
        assert not re.search(r"(?<!\\)[`$\[<]", re.sub(r"</?(details|summary)>", "", line))


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("a|b", "a\\|b"),
        ("`x` *y* _z_", "\\`x\\` \\*y\\* \\_z\\_"),
        ("1. x", "1\\. x"),
        ("1.52×", "1.52×"),
        ("- x", "\\- x"),
        ("-0.5", "-0.5"),
        ("https://x.org", "https\\://x.org"),
        ("<b>&amp;@me #1", "\\<b\\>\\&amp;\\@me \\#1"),
    ],
)
def test_markdown_means_nothing_in_names(text: str, escaped: str) -> None:
    from ladecli.bench.report.markdown import escaped as function

    assert function(text) == escaped


@pytest.mark.parametrize("suffix", report.SUFFIXES)
@pytest.mark.parametrize("name", ["usual", "sweep"])
def test_the_same_result_gives_the_same_bytes(name: str, suffix: str) -> None:
    make = report_results.ALL[name]
    assert report.as_text(make(), Path(f"x{suffix}")) == report.as_text(make(), Path(f"x{suffix}"))


def test_the_users_own_style_of_matplotlib_changes_nothing() -> None:
    import matplotlib

    with matplotlib.rc_context({"axes.facecolor": "red", "text.usetex": True, "font.size": 30}):
        assert page_of.__wrapped__("one axis") == page_of("one axis")
        assert matplotlib.rcParams["font.size"] == 30


def test_json_is_the_result(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    made = makers.result()
    report.write(made, path)
    assert json.loads(path.read_text())["schema"] == "lade-bench/1"
    assert record.read(path).runs == made.runs


def test_all_formats_have_the_same_headline(tmp_path: Path) -> None:
    made = dataclasses.replace(makers.result(), interrupted=True)
    for suffix in (".html", ".md", ".svg"):
        path = tmp_path / f"x{suffix.upper()}"
        report.write(made, path)
        assert "Lookahead makes 1.5" in path.read_text().replace("\n", " ")


def test_other_formats_are_refused_before_anything_happens(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        report.check(Path("x.pdf"))
    assert str(caught.value) == (
        "--report x.pdf: the name of a report ends in .html, .md, .svg or .json"
    )
    with pytest.raises(UsageError, match="does not exist"):
        report.check(tmp_path / "no" / "x.html")
    with pytest.raises(UsageError, match=r"ends in \.html"):
        report.write(makers.result(), tmp_path / "x")
    assert report.check(tmp_path / "x.HTML") is None
    with pytest.raises(LadeError, match="cannot be written"):
        report.write(makers.result(rows=1), tmp_path / "no" / "x.md")
