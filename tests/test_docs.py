"""The README and the docs: their commands work, and the files and options that they name exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

import ladecli
from ladecli.commands.cli import entry
from ladecli.decoder.drafting.ngram_model import NgramModel, pack

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
FIGURES = ROOT / "benchmarks/README.md"
LOG = ROOT / "benchmarks/log.md"
"""Pages with past figures, whose links must work, but not their commands."""
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md")), FIGURES]
LINKED = [*PAGES, LOG, ROOT / "benchmarks/gpu/README.md"]
BLOCK = re.compile(r"(<!-- not run: \S.* -->\n)?```(console|python)\n(.*?)```", re.DOTALL)
CI = ("pip", "pytest")
"""Programs that `.ci/run` runs as described in the README."""


def blocks(page: Path, language: str) -> list[str]:
    """Return the code of a page that a test can run; other blocks state the reason."""
    whole = BLOCK.findall(page.read_text(encoding="utf-8"))
    return [code for reason, kind, code in whole if kind == language and not reason]


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p, "console")], ids=lambda p: p.stem)
def test_commands_of_a_page_run(page: Path, tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    (tmp_path / "scripts").symlink_to(ROOT / "scripts")
    monkeypatch.chdir(tmp_path)
    lines = [line for code in blocks(page, "console") for line in code.splitlines()]
    for command in [part for line in lines for part in line.removeprefix("$ ").split(" && ")]:
        command, _, target = command.partition(" > ")
        program, *arguments = shlex.split(command, comments=True)
        if program in CI:
            continue
        assert program == "lade", f"say why it is not run: {command}"
        assert entry(arguments) == 0, command
        printed = capsys.readouterr().out
        assert printed, command
        if target:
            Path(target).write_text(printed, encoding="utf-8")


def test_commands_in_the_text_have_options_that_exist(capsys: pytest.CaptureFixture[str]) -> None:
    """Options are parsed before the help is printed, so one call checks them all."""
    text, arguments = "".join(page.read_text(encoding="utf-8") for page in PAGES), dict[str, str]()
    for name, others in {*re.findall(r"`lade ((?:config )?[a-z]+)([^`]*)`", text)}:
        arguments[name] = arguments.get(name, "") + f" {others}"
    for name, others in arguments.items():
        assert entry([*name.split(), *shlex.split(others), "--help"]) == 0, name
        assert "Usage" in capsys.readouterr().out


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p, "python")], ids=lambda p: p.stem)
def test_python_of_a_page_runs(page: Path) -> None:
    names: dict[str, Any] = {"ladecli": ladecli, "folder": ROOT / "ladecli/demo"}
    for code in blocks(page, "python"):
        exec(compile(code, str(page), "exec"), names)


def test_the_draft_source_of_the_extension_guide_expects_its_phrases() -> None:
    names: dict[str, Any] = {}
    (code,) = blocks(ROOT / "docs/extending.md", "python")
    exec(code, names)
    source = names["PhraseSource"](NgramModel())
    source.begin([1, 2])
    for *text, following in source.PHRASES:
        assert source.model.look_up(pack(text))[0][1] == following


def headings(page: Path) -> set[str]:
    """Return GitHub's anchors of the headings of a page."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", LINKED, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_and_paths_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for link, heading in re.findall(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)", text):
        target = page.parent / link if link else page
        assert target.exists(), link
        if heading:
            assert heading in headings(target), f"{link}#{heading}"
    if page != LOG:
        paths = r"`(?:python )?((?:ladecli|tests|benchmarks|scripts|docs)(?:/[\w./]+)?)[ `]"
        for path in re.findall(paths, text):
            assert (ROOT / path).exists(), path


def test_every_script_and_every_result_of_the_benchmarks_is_on_a_page() -> None:
    text = FIGURES.read_text(encoding="utf-8")
    results = text + LOG.read_text(encoding="utf-8")
    for script in (ROOT / "benchmarks").glob("*.py"):
        if "__main__" in script.read_text(encoding="utf-8") and script.stem != "peer_workers":
            assert f"python benchmarks/{script.name}" in text, script.name
    for result in (ROOT / "benchmarks/results").glob("*.json"):
        assert f"results/{result.name}" in results, result.name


def test_the_tables_of_models_name_tests_and_fields_that_exist() -> None:
    text = (ROOT / "docs/models.md").read_text(encoding="utf-8")
    whole, _, fields = text.partition("## The generation config")
    for path, names in re.findall(r"`(tests/[\w/]+\.py)`: ((?:`[\w.-]+`(?:, )?)+)", whole):
        source = (ROOT / path).read_text(encoding="utf-8")
        for name in re.findall(r"`(.+?)`", names):
            assert f"def {name}(" in source or f'"{name}": Case(' in source, (path, name)
    source = (ROOT / "tests/test_generation_config.py").read_text(encoding="utf-8")
    assert [name for name in re.findall(r"`(test_\w+)`", fields) if name not in source] == []


def test_the_architecture_names_every_module() -> None:
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    modules = {path for path in (ROOT / "ladecli").iterdir() if not path.name.startswith("__")}
    missing = [p.name for p in modules if not re.search(rf"`ladecli/{re.escape(p.name)}`", text)]
    assert missing == []


def test_the_architecture_says_how_long_the_reading_order_is() -> None:
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    files = re.findall(r"^\| \[.*?\]\((.*?)\)", text, re.MULTILINE)
    lines = sum((ROOT / "docs" / file).read_text(encoding="utf-8").count("\n") for file in files)
    stated = re.search(r"They have ([\d,]+) lines", text)
    assert stated
    assert abs(int(stated[1].replace(",", "")) - lines) <= 100
