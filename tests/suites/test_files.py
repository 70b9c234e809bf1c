"""Files of prompts: what they become, and the line that refuses what makes no sense."""

from __future__ import annotations

import io
import json
import os
import sys
import threading
from pathlib import Path

import pytest

from ladecli import files, prompts, suites
from ladecli.errors import UsageError
from ladecli.suites import Row

WRITE = 'write rows like {"prompt": "Hello"}'


def refused(name: str) -> str:
    with pytest.raises(UsageError) as error:
        suites.load(name)
    assert "\n" not in str(error.value)
    return str(error.value)


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
    assert prompts.gather(["zero"], [str(path)]) == [
        ("1", "zero"),
        ("a", "one\u2028line"),
        ("3", "first"),
        ("7", " kept "),
    ]


BROKEN = {
    "no JSON": ('{"promp', "no JSON (Unterminated string starting at)"),
    "plain text": ("Once upon a time", "no JSON (Expecting value)"),
    "nested": ("[" * 100_000, "no JSON that can be read (nested too deeply)"),
    "long number": ("9" * 5000, "no JSON that can be read (a number is too long)"),
    "list": ('["a"]', "must be an object with 'prompt' or 'turns'"),
    "number": ("3", "must be an object with 'prompt' or 'turns'"),
    "neither": ('{"id": 3}', "needs 'prompt' or 'turns'"),
    "null": ('{"prompt": null}', "needs 'prompt' or 'turns'"),
    "prompt 3": ('{"prompt": 3}', "the prompt must be a string"),
    "prompts": ('{"prompt": ["a"]}', "the prompt must be a string"),
    "empty": ('{"prompt": ""}', "the prompt is empty"),
    "blank": ('{"prompt": " \\n"}', "the prompt is empty"),
    "no turns": ('{"turns": []}', "the list of turns is empty"),
    "one turn": ('{"turns": "a"}', "the turns must be a list of strings"),
    "odd turn": ('{"turns": ["a", 3]}', "the turns must be a list of strings"),
    "blank turn": ('{"turns": ["a", ""]}', "turn 2 is empty"),
    "surrogate": ('{"prompt": "a\\ud83d"}', "the prompt holds \\ud83d, half of a character"),
    "second turn": ('{"turns": ["a", "\\udc00"]}', "turn 2 holds \\udc00, half of a character"),
    "id": ('{"prompt": "a", "id": [1]}', "the id must be a string or a number"),
    "id true": ('{"prompt": "a", "id": true}', "the id must be a string or a number"),
    "half id": ('{"prompt": "a", "id": "\\ud800"}', "the id holds \\ud800, half of a character"),
    "category": ('{"prompt": "a", "category": {}}', "the category must be a string or a number"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_row_is_named(case: str, tmp_path: Path) -> None:
    line, problem = BROKEN[case]
    path = tmp_path / "x.jsonl"
    path.write_text(f'{{"prompt": "fine"}}\n\n{line}\n', encoding="utf-8")
    assert refused(str(path)) == f"{path}, line 3: {problem}"
    with pytest.raises(UsageError) as error:
        prompts.gather([], [str(path)])
    assert str(error.value) == f"{path}, line 3: {problem}"


@pytest.mark.parametrize(("more", "words"), [(1, "1 more row is"), (4, "4 more rows are")])
def test_the_first_broken_row_is_told_and_how_many_follow(
    more: int, words: str, tmp_path: Path
) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"prompt": "fine"}\n' + "nonsense\n" * (more + 1))
    assert refused(str(path)) == f"{path}, line 2: no JSON (Expecting value); {words} broken"


def test_ids_are_there_once(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    rows = ({"id": 1}, {"id": "b"}, {}, {"id": "1"}, {"id": "b"})
    path.write_text("\n".join(json.dumps(row | {"prompt": "a"}) for row in rows))
    ids = "both rows have the id '1'; give each its own"
    assert refused(str(path)) == f"{path}, lines 1 and 4: {ids}"
    # A name that a row got from its line is taken too.
    path.write_text('{"prompt": "a"}\n{"prompt": "a", "id": "line-1"}\n')
    assert refused(str(path)).startswith(f"{path}, lines 1 and 2: both rows have the id 'line-1'")
    # Nothing refers to rows by their ids where they are answered one after the other.
    assert prompts.gather([], [str(path)]) == [("1", "a"), ("line-1", "a")]


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    def made(name: str, data: bytes) -> Path:
        (tmp_path / name).write_bytes(data)
        return tmp_path / name

    empty, blank = made("empty.jsonl", b""), made("blank.jsonl", b"\n \n")
    binary, latin = made("binary", b'{"prompt": "\0"}'), made("latin", b'{"prompt": "caf\xe9"}')
    missing = tmp_path / "missing.jsonl"
    for path, problem in (
        (empty, f"the prompt file {empty} is empty; {WRITE}"),
        (blank, f"the prompt file {blank} holds no prompts; {WRITE}"),
        (binary, f"the prompt file {binary} is binary (a zero byte); give a text file"),
        (
            latin,
            f"the prompt file {latin} is not UTF-8 (byte 15); convert it, for example with"
            " iconv -f latin1 -t utf-8",
        ),
        (tmp_path, f"the prompt file {tmp_path} is a folder; name a file in it"),
        (missing, f"there is no prompt file {missing}; check the path"),
        (empty / "x", f"the prompt file {empty / 'x'} cannot be read: Not a directory"),
    ):
        assert refused(str(path)) == problem


def test_what_is_too_large_for_a_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "LIMIT", 2_000_000)
    path = tmp_path / "x.jsonl"
    path.write_bytes(b" " * 2_000_001)
    problem = "cannot be read: it holds more than 2 MB"
    assert refused(str(path)) == f"the prompt file {path} {problem}"
    piped(monkeypatch, b" " * 2_000_001)
    assert refused("-") == f"standard input {problem}"
    piped(monkeypatch, b'{"prompt": "a"}'.ljust(2_000_000))
    assert len(suites.load("-").rows) == 1


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_named_pipe(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = threading.Thread(target=path.write_text, args=["Hello"])
    writer.start()
    assert prompts.gather([], [str(path)]) == [("1", "Hello")]
    writer.join()


def piped(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    piped(monkeypatch, b'{"prompt": "a"}\n')
    assert suites.load("-") == suites.Suite("standard input", (Row("line-1", "all", ("a",)),))
    piped(monkeypatch, b"")
    assert refused("-") == f"standard input is empty; {WRITE}"
    piped(monkeypatch, b"{")
    assert refused("-").startswith("standard input, line 1: no JSON (Expecting property name")
    monkeypatch.setattr(sys, "stdin", None)
    assert refused("-") == "standard input is closed; name a file in place of -"


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("mtbench", "mt-bench"),
        ("MT_Bench", "mt-bench"),
        ("spec_bench", "spec-bench"),
        ("humanevl", "humaneval"),
        ("GSM8K", "gsm8k"),
        ("build-in", "builtin"),
    ],
)
def test_a_misspelt_suite(name: str, near: str) -> None:
    assert refused(name) == f"there is no suite {name!r}; did you mean {near}?"


@pytest.mark.parametrize("name", ["nonsense", "", "questions.txt"])
def test_a_name_of_nothing(name: str) -> None:
    assert refused(name) == (
        f"there is neither a suite nor a prompt file {name!r}; suites are builtin, mt-bench,"
        " humaneval, gsm8k, spec-bench, and files end in .jsonl"
    )


def test_a_file_may_be_called_like_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("mtbench", "builtin"):
        Path(name).write_text('{"prompt": "mine"}')
    assert suites.load("mtbench").rows[0].turns == ("mine",)
    assert suites.load("./builtin").rows[0].turns == ("mine",)
    assert len(suites.load("builtin").rows) == 18
