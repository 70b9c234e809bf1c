"""The builtin suite, files of prompts, suites from the hub, and parts of suites."""

from __future__ import annotations

import errno
import io
import json
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from huggingface_hub import constants, errors

from ladecli import suites
from ladecli.commands import generate as prompts
from ladecli.errors import LadeError
from ladecli.suites import FIX, Row


def refused(name: str, **options: bool) -> str:
    with pytest.raises(LadeError) as error:
        suites.load(name, **options)
    assert "\n" not in str(error.value)
    return str(error.value)


def piped(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))


def test_the_builtin_suite_is_whole() -> None:
    rows = suites.load("builtin")
    assert len({row.id for row in rows}) == len(rows) == 18
    categories = ("chat", "code", "maths", "summary", "translation", "retrieval")
    assert Counter(row.category for row in rows) == dict.fromkeys(categories, 3)


@pytest.mark.parametrize(
    ("limit", "names"),
    [(1, "b1"), (5, "b1 a1 c1 b2 a2"), (99, "b1 a1 c1 b2 a2 b3"), (None, "b1 b2 a1 b3 c1 a2")],
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
    assert suites.load(str(path)) == (
        Row("a", "code", ("one\u2028line",)),
        Row("line-3", "all", ("first", "second")),
        Row("7", "2.5", (" kept ",)),
    )
    found = prompts.gather([], [str(path)])
    assert found == [("a", "one\u2028line"), ("2", "first"), ("7", " kept ")]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        *((line, "no JSON object") for line in ('{"promp', "Once", "[" * 100_000, "9" * 5000)),
        ('{"prompt": "a\\ud83d"}', "no JSON object"),
        ('{"id": 3}', "no 'prompt'"),
        ('{"prompt": 3}', "'prompt' is empty or no text"),
        ('{"prompt": null}', "no 'prompt'"),
        ('{"turns": "a"}', "'turns' is empty or no text"),
        ('{"turns": ["a", ""]}', "'turns' is empty or no text"),
        ('{"prompt": "a", "id": [1]}', "'id'"),
        ('{"prompt": "a", "category": {}}', "'category'"),
    ],
)
def test_an_invalid_row_is_named(line: str, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text(f'{{"prompt": "fine"}}\n\n{line}\n', encoding="utf-8")
    message = refused(str(path))
    assert f"{path}, line 3: " in message
    assert problem in message


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"\n \n", "has no prompts; write rows like"),
        (b'{"prompt": "\0"}', "is binary"),
        (b'{"prompt": "caf\xe9"}', "is not UTF-8 (byte 15)"),
        (b'{"prompt": "a", "id": 1}\n{"prompt": "a", "id": "1"}', "both rows have the id"),
        (b'{"prompt": "a"}\n{"prompt": "a", "id": "line-1"}', "lines 1 and 2: both rows"),
    ],
)
def test_files_that_cannot_be_used(data: bytes, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(data)
    message = refused(str(path))
    assert str(path) in message
    assert problem in message


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    piped(monkeypatch, b'{"prompt": "a"}\n')
    assert suites.load("-") == (Row("line-1", "all", ("a",)),)
    piped(monkeypatch, b"{")
    assert refused("-").startswith("standard input, line 1: ")
    monkeypatch.setattr(sys, "stdin", None)
    assert refused("-").startswith("standard input is closed; ")


@pytest.mark.parametrize(
    ("name", "hint"),
    [("MT_Bench", "did you mean mt-bench?"), ("nonsense", ", ".join(suites.NAMES)), ("", ".jsonl")],
)
def test_an_unknown_suite(name: str, hint: str) -> None:
    assert repr(name) in refused(name)
    assert hint in refused(name)


def test_a_file_may_be_called_like_a_suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("builtin").write_text('{"prompt": "mine"}')
    assert suites.load("./builtin")[0].turns == ("mine",)
    assert len(suites.load("builtin")) == 18


MT_BENCH = ("lmsys/mt-bench", "data/mt_bench/question.jsonl")
GSM8K = ("DaertML/gsm8k-jsonl", "test.jsonl")
BENCHMARKS = "RedHatAI/speculator_benchmarks"
HUMANEVAL = (BENCHMARKS, "HumanEval.jsonl")
PARTS = ("translation", "summarization", "qa", "math_reasoning", "rag")


class Hub:
    """The hub and its cache, in place of `hf_hub_download`: `files` has the rows, `asked` the
    files that were downloaded, and a download raises `failure`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.asked: list[str] = []
        self.failure: Exception | None = None
        self.files: dict[tuple[str, str], list[dict[str, Any]]] = {
            MT_BENCH: [
                {"question_id": 81 + n, "category": f"c{n}", "turns": [f"q{n}", "again"]}
                for n in range(2)
            ],
            HUMANEVAL: [{"task_id": f"HumanEval/{n}", "prompt": f"def f{n}"} for n in range(2)],
            GSM8K: [{"question": f"How many are {n}?", "answer": f"{n}"} for n in range(2)],
        }
        for name in PARTS:
            rows = [{"id": ["odd"], "prompt": f"{name} {n}"} for n in range(2)]
            self.files[BENCHMARKS, f"{name}.jsonl"] = rows

    def download(
        self, *, repo_id: str, filename: str, repo_type: str, local_files_only: bool = False
    ) -> str:
        path = self.folder / repo_type / repo_id / filename
        if path.exists():
            return str(path)
        if local_files_only:
            raise errors.LocalEntryNotFoundError("not in the cache, and a long explanation")
        self.asked.append(filename)
        if self.failure is not None:
            raise self.failure
        path.parent.mkdir(parents=True, exist_ok=True)
        rows = self.files[repo_id, filename]
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
        return str(path)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    hub = Hub(tmp_path)
    monkeypatch.setattr("huggingface_hub.hf_hub_download", hub.download)
    monkeypatch.setattr("ladecli.specs.hub.hub_answers", lambda: True)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    return hub


@pytest.mark.parametrize(
    ("name", "count", "last"),
    [
        ("mt-bench", 2, ("mt-bench/82", "c1", "q1")),
        ("humaneval", 2, ("HumanEval/1", "humaneval", "def f1")),
        ("gsm8k", 2, ("gsm8k/1", "gsm8k", "How many are 1?")),
        ("spec-bench", 12, ("rag/1", "rag", "rag 1")),
    ],
)
def test_rows_of_the_field(hub: Hub, name: str, count: int, last: Any) -> None:
    rows = suites.load(name)
    assert len(rows) == len({row.id for row in rows}) == count
    assert (rows[-1].id, rows[-1].category, rows[-1].turns[0]) == last
    # What was fetched once needs no network.
    asked = len(hub.asked)
    assert suites.load(name, offline=True) == rows
    assert len(hub.asked) == asked


@pytest.mark.parametrize("cause", ["unreachable", "variable", "flag"])
def test_no_network(hub: Hub, monkeypatch: pytest.MonkeyPatch, cause: str) -> None:
    monkeypatch.setattr("ladecli.specs.hub.hub_answers", lambda: cause != "unreachable")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", cause == "variable")
    why = "--offline forbids to fetch it" if cause == "flag" else "the hub cannot be reached"
    message = refused("gsm8k", offline=cause == "flag")
    assert message == f"the suite gsm8k is not on this machine, and {why}; {FIX}"
    assert hub.asked == []


ANSWER: Any = SimpleNamespace(headers={}, request=None)
"""All that an error of the hub wants to know of its answer, whose library differs by version."""


def fail(error: Exception) -> Callable[[Hub], None]:
    return lambda hub: setattr(hub, "failure", error)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (fail(errors.RepositoryNotFoundError("404 gone\nlong", response=ANSWER)), "404 gone"),
        (fail(errors.LocalEntryNotFoundError("cannot\nlong")), "cannot be reached"),
        (fail(OSError(errno.ENOSPC, "No space left on device")), "No space left on device"),
        (lambda hub: hub.files[GSM8K].append({"text": "def"}), "changed on the hub"),
    ],
)
def test_a_suite_that_cannot_be_had(hub: Hub, change: Callable[[Hub], Any], reason: str) -> None:
    change(hub)
    message = refused("gsm8k")
    assert reason in message
    assert "gsm8k" in message
    assert message.endswith(FIX)
