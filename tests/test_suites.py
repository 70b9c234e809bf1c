"""The builtin suite, files of prompts, suites from the hub, and parts of suites."""

from __future__ import annotations

import io
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from ladecli import suites
from ladecli.commands import generate as prompts
from ladecli.errors import LadeError
from ladecli.session.dialogue import Row
from ladecli.suites import FIX
from tests.support.hub import use_cache


def refused(name: str, **options: bool) -> str:
    with pytest.raises(LadeError) as error:
        suites.load(name, **options)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_the_builtin_suite_is_whole() -> None:
    rows = suites.load("builtin")
    assert len({row.id for row in rows}) == len(rows) == 18
    categories = ("chat", "code", "maths", "summary", "translation", "retrieval")
    assert Counter(row.category for row in rows) == dict.fromkeys(categories, 3)


@pytest.mark.parametrize(
    ("limit", "names"),
    [(1, "b1"), (5, "b1 a1 c1 b2 a2"), (99, "b1 a1 c1 b2 a2 b3"), (None, "b1 b2 a1 b3 c1 a2")],
)
def test_a_part_has_rows_of_every_category(limit: int | None, names: str) -> None:
    rows = [Row(name, name[0], ("text",)) for name in ("b1", "b2", "a1", "b3", "c1", "a2")]
    assert " ".join(row.id for row in suites.some(rows, limit)) == names


def test_rows_of_a_file(tmp_path: Path) -> None:
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
    assert [row.id for row in prompts.gather([], [str(path)])] == ["a", "2", "7"]


def talk(*messages: tuple[str, object], **more: object) -> str:
    """A row of messages, by role and content."""
    listed = [{"role": role, "content": content} for role, content in messages]
    return json.dumps({"messages": listed, **more})


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        *((line, "JSON") for line in ('{"promp', "[" * 10**5, "9" * 5000, '{"prompt": "\\ud83d"}')),
        ('{"id": 3}', "no 'prompt'"),
        ('{"prompt": 3}', "prompt: input should be a valid string, not 3"),
        ('{"prompt": null}', "no 'prompt'"),
        ('{"prompt": "a", "id": [1]}', "id: "),
        ('{"turns": ["a", ""]}', "a prompt is blank"),
        ('{"prompt": "a", "turns": ["b"]}', "'prompt' and 'turns'"),
        (talk(("user", "a"), turns=["b"]), "'turns' and 'messages'"),
        (talk(), "no 'prompt', 'turns' or 'messages'; write rows like"),
        ('{"messages": ["a"]}', "messages 1: input should be an object"),
        (talk(("user", None)), "messages 1: its content must be text"),
        (talk(("user", 5)), "messages 1 content: it must be text"),
        (talk(("user", "a"), tools="weather"), "tools: "),
        (talk(("user", "a"), tools=["weather"]), "tools 1: "),
        (talk(("user", "a"), tools=[], tool_choice="required"), "tool_choice: "),
        (talk(("user", "a"), tools=[], tool_choice={"type": "function"}), "tool_choice: "),
        (talk(("system", "b"), ("user", "c"), system="a"), "'system' and a system message"),
        (talk(("user", "a"), ("critic", "b")), "messages 2 role: input should be 'system', "),
        (
            talk(("user", [{"type": "image"}])),
            "content 1 type: input should be 'text', not ",
        ),
        (talk(("user", " ")), "must be a text of the user's"),
        (talk(("assistant", "a")), "is the assistant's, and must"),
        (talk(("user", "a"), ("system", "a"), ("user", "a")), "message 2 is a system message"),
    ],
)
def test_an_invalid_row_is_named(line: str, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text(f'{{"prompt": "fine"}}\n\n{line}\n', encoding="utf-8")
    message = refused(str(path))
    assert f"{path}, line 3: " in message
    assert problem in message


def test_files_that_cannot_be_used(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text("\n \n")
    assert f"{path} has no prompts; write rows like" in refused(str(path))
    path.write_text('{"prompt": "a"}\n{"prompt": "a", "id": "line-1"}')
    assert "lines 1 and 2: both rows have the id" in refused(str(path))


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    def pipe(data: bytes) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))

    pipe(b'{"prompt": "a"}\n')
    assert suites.load("-") == (Row("line-1", "all", ("a",)),)
    pipe(b"{")
    assert refused("-").startswith("standard input, line 1: ")
    monkeypatch.setattr(sys, "stdin", None)
    assert refused("-").startswith("standard input is closed; ")


def test_a_file_may_be_named_like_a_suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("builtin").write_text('{"prompt": "mine"}')
    assert suites.load("./builtin")[0].turns == ("mine",)
    assert len(suites.load("builtin")) == 18


BENCHMARKS = "datasets--RedHatAI--speculator_benchmarks"
TASKS = ("translation", "summarization", "qa", "math_reasoning", "rag")
CACHED: dict[str, dict[str, Any]] = {
    "spaces--lmsys--mt-bench/data/mt_bench/question.jsonl": {
        "question_id": 82, "category": "writing", "turns": ["Write.", "Again."],
    },
    f"{BENCHMARKS}/HumanEval.jsonl": {"task_id": "HumanEval/1", "prompt": "def f"},
    "datasets--DaertML--gsm8k-jsonl/test.jsonl": {"question": "How many?", "answer": "1"},
    **{f"{BENCHMARKS}/{task}.jsonl": {"id": ["odd"], "prompt": task} for task in TASKS},
}  # fmt: skip
"""A row of each file on the hub, by repository and name."""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache of the hub's library, after all suites were fetched; there is no network."""
    use_cache(monkeypatch, tmp_path)
    for name, row in CACHED.items():
        repository, file = name.split("/", 1)
        path = tmp_path / repository / "snapshots" / "0" / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(row), encoding="utf-8")
        (tmp_path / repository / "refs").mkdir(exist_ok=True)
        (tmp_path / repository / "refs" / "main").write_text("0")
    return tmp_path


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize(
    ("name", "last"),
    [
        ("mt-bench", Row("mt-bench/82", "writing", ("Write.", "Again."))),
        ("humaneval", Row("HumanEval/1", "humaneval", ("def f",))),
        ("gsm8k", Row("gsm8k/0", "gsm8k", ("How many?",))),
        ("spec-bench", Row("rag/0", "rag", ("rag",))),
    ],
)
def test_a_fetched_suite_needs_no_network(name: str, last: Row) -> None:
    rows = suites.load(name, offline=True)
    assert rows[-1] == last
    assert len({row.id for row in rows}) == len(rows) == (6 if name == "spec-bench" else 1)


def test_a_suite_that_cannot_be_fetched(cache: Path) -> None:
    path = cache / "datasets--DaertML--gsm8k-jsonl" / "snapshots" / "0" / "test.jsonl"
    for row in ('{"text": "def"}', "{"):
        path.write_text(row)
        assert refused("gsm8k") == f"the suite gsm8k was changed on the hub; {FIX}"
    path.unlink()
    assert "is not on this machine, and HF_HUB_OFFLINE forbids downloading it" in refused("gsm8k")
    assert "--offline forbids downloading it" in refused("gsm8k", offline=True)
