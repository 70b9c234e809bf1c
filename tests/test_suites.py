"""The builtin suite, files of prompts, and parts of suites."""

from __future__ import annotations

import io
import json
import sys
from collections import Counter
from pathlib import Path

import pytest

from ladecli import suites
from ladecli.commands import generate as prompts
from ladecli.errors import UsageError
from ladecli.suites import Row


def refused(name: str) -> str:
    with pytest.raises(UsageError) as error:
        suites.load(name)
    assert "\n" not in str(error.value)
    return str(error.value)


def piped(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))


def test_the_builtin_suite_is_whole() -> None:
    rows = suites.load("builtin").rows
    assert len({row.id for row in rows}) == len(rows) == 18
    categories = ("chat", "code", "maths", "summary", "translation", "retrieval")
    assert Counter(row.category for row in rows) == dict.fromkeys(categories, 3)
    assert {len(row.turns) for row in rows} == {1, 2}


@pytest.mark.parametrize(
    ("limit", "names"),
    [
        (1, "b1"),
        (3, "b1 a1 c1"),
        (5, "b1 a1 c1 b2 a2"),
        (99, "b1 a1 c1 b2 a2 b3"),
        (None, "b1 b2 a1 b3 c1 a2"),
    ],
)
def test_a_part_has_something_of_every_category(limit: int | None, names: str) -> None:
    rows = [Row(name, name[0], ("text",)) for name in ("b1", "b2", "a1", "b3", "c1", "a2")]
    assert " ".join(found.id for found in suites.some(rows, limit)) == names


def test_what_rows_become(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    lines = (
        '\ufeff{"id": "a", "category": "code", "prompt": "one\u2028line", "answer": [1]}\r',
        "",
        '{"turns": ["first", "second"], "category": null}',
        '{"id": 7, "category": 2.5, "prompt": " kept "}',
    )
    path.write_text("\n".join(lines), encoding="utf-8")
    suite = suites.load(str(path))
    assert suite.name == str(path)
    assert suite.rows == (
        Row("a", "code", ("one\u2028line",)),
        Row("line-3", "all", ("first", "second")),
        Row("7", "2.5", (" kept ",)),
    )
    found = prompts.gather([], [str(path)])
    assert found == [("a", "one\u2028line"), ("2", "first"), ("7", " kept ")]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('{"promp', "Invalid JSON"),
        ("Once upon a time", "Invalid JSON"),
        ("[" * 100_000, "Invalid JSON"),
        ("9" * 5000, "Invalid JSON"),
        ('["a"]', "object"),
        ('{"id": 3}', "needs 'prompt' or 'turns'"),
        ('{"prompt": null}', "needs 'prompt' or 'turns'"),
        ('{"prompt": 3}', "prompt: "),
        ('{"prompt": ["a"]}', "prompt: "),
        ('{"prompt": " \\n"}', "prompt: it is empty"),
        ('{"turns": []}', "turns: "),
        ('{"turns": "a"}', "turns: "),
        ('{"turns": ["a", 3]}', "turns, 2: "),
        ('{"turns": ["a", ""]}', "turns, 2: it is empty"),
        ('{"prompt": "a\\ud83d"}', "Invalid JSON"),
        ('{"prompt": "a", "id": [1]}', "id: "),
        ('{"prompt": "a", "id": true}', "id: "),
        ('{"prompt": "a", "category": {}}', "category: "),
    ],
)
def test_an_invalid_row_is_named(line: str, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text(f'{{"prompt": "fine"}}\n\n{line}\n', encoding="utf-8")
    message = refused(str(path))
    assert message.startswith(f"{path}, line 3: ")
    assert problem in message
    with pytest.raises(UsageError, match="line 3"):
        prompts.gather([], [str(path)])


def test_ids_are_unique(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    rows = ({"id": 1}, {"id": "b"}, {}, {"id": "1"}, {"id": "b"})
    path.write_text("\n".join(json.dumps(row | {"prompt": "a"}) for row in rows))
    assert refused(str(path)).startswith(f"{path}, lines 1 and 4: both rows have the id '1'")
    # A row without an id is named after its line.
    path.write_text('{"prompt": "a"}\n{"prompt": "a", "id": "line-1"}\n')
    assert refused(str(path)).startswith(f"{path}, lines 1 and 2: both rows have the id 'line-1'")


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "is empty; write rows like"),
        (b"\n \n", "holds no prompts; write rows like"),
        (b'{"prompt": "\0"}', "is binary"),
        (b'{"prompt": "caf\xe9"}', "is not UTF-8 (byte 15)"),
        (None, "there is no prompt file"),
    ],
)
def test_files_that_cannot_be_read(data: bytes | None, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    if data is not None:
        path.write_bytes(data)
    assert problem in refused(str(path))
    assert str(path) in refused(str(path))
    assert "is a folder" in refused(str(tmp_path))


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    piped(monkeypatch, b'{"prompt": "a"}\n')
    assert suites.load("-") == suites.Suite("standard input", (Row("line-1", "all", ("a",)),))
    piped(monkeypatch, b"")
    assert refused("-").startswith("standard input is empty; ")
    piped(monkeypatch, b"{")
    assert refused("-").startswith("standard input, line 1: ")
    monkeypatch.setattr(sys, "stdin", None)
    assert refused("-").startswith("standard input is closed; ")


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("MT_Bench", "did you mean mt-bench?"),
        ("humanevl", "did you mean humaneval?"),
        ("build-in", "did you mean builtin?"),
        ("nonsense", ", ".join(suites.NAMES)),
        ("", ", ".join(suites.NAMES)),
    ],
)
def test_an_unknown_suite(name: str, hint: str) -> None:
    assert repr(name) in refused(name)
    assert hint in refused(name)


def test_a_file_may_be_called_like_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("mtbench", "builtin"):
        Path(name).write_text('{"prompt": "mine"}')
    assert suites.load("mtbench").rows[0].turns == ("mine",)
    assert suites.load("./builtin").rows[0].turns == ("mine",)
    assert len(suites.load("builtin").rows) == 18
