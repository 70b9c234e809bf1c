"""Suites from the hub: fetched once, named as here, and one line where they cannot be had."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from huggingface_hub import constants, errors
from huggingface_hub.utils import are_progress_bars_disabled

from ladecli import suites
from ladecli.errors import LadeError
from ladecli.suites import FIX, Row

MT_BENCH = ("space", "lmsys/mt-bench", "data/mt_bench/question.jsonl")
GSM8K = ("dataset", "DaertML/gsm8k-jsonl", "test.jsonl")
BENCHMARKS = ("dataset", "RedHatAI/speculator_benchmarks")
HUMANEVAL = (*BENCHMARKS, "HumanEval.jsonl")
PARTS = ("translation", "summarization", "qa", "math_reasoning", "rag")


class Hub:
    """The hub and its cache; `hf_hub_download` of these tests.

    Args:
        folder: where the cache is.
        files: rows by kind, repository and path; what is not among them, is not there.
    """

    def __init__(self, folder: Path, files: dict[tuple[str, str, str], list[Any]]) -> None:
        self.folder = folder
        self.files = files
        self.asked: list[str] = []
        self.failure: Exception | None = None
        self.bars: list[bool] = []

    def download(
        self, *, repo_id: str, filename: str, repo_type: str, local_files_only: bool = False
    ) -> str:
        path = self.folder / repo_type / repo_id / filename
        if path.exists():
            return str(path)
        if local_files_only:
            raise errors.LocalEntryNotFoundError("not in the cache, and a long explanation")
        self.asked.append(filename)
        self.bars.append(not are_progress_bars_disabled())
        if self.failure is not None:
            raise self.failure
        rows = self.files[repo_type, repo_id, filename]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
        return str(path)


ANSWER: Any = SimpleNamespace(headers={}, request=None)
"""All that an error of the hub wants to know of its answer, whose library differs by version."""


class ReadTimeout(Exception):
    """An error of the HTTP library, which the hub's client lets through."""


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    questions = [
        {"question_id": 81 + n, "category": f"c{n // 10}", "turns": [f"q{n}", "again"]}
        for n in range(80)
    ]
    problems = [
        {"task_id": f"HumanEval/{n}", "prompt": f"def f{n}", "test": ""} for n in range(164)
    ]
    sums = [{"question": f"How many are {n}?", "answer": f"{n}"} for n in range(1319)]
    hub = Hub(
        tmp_path,
        {MT_BENCH: questions, HUMANEVAL: problems, GSM8K: sums}
        | {
            (*BENCHMARKS, f"{name}.jsonl"): [
                {"id": ["odd"], "prompt": f"{name} {n}"} for n in range(80)
            ]
            for name in PARTS
        },
    )
    monkeypatch.setattr("huggingface_hub.hf_hub_download", hub.download)
    monkeypatch.setattr("ladecli.specs.hub.hub_answers", lambda: True)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    return hub


@pytest.mark.parametrize(
    ("name", "count", "first", "last"),
    [
        (
            "mt-bench",
            80,
            Row("mt-bench/81", "c0", ("q0", "again")),
            Row("mt-bench/160", "c7", ("q79", "again")),
        ),
        (
            "humaneval",
            164,
            Row("HumanEval/0", "humaneval", ("def f0",)),
            Row("HumanEval/163", "humaneval", ("def f163",)),
        ),
        (
            "gsm8k",
            1319,
            Row("gsm8k/0", "gsm8k", ("How many are 0?",)),
            Row("gsm8k/1318", "gsm8k", ("How many are 1318?",)),
        ),
        (
            "spec-bench",
            480,
            Row("mt-bench/81", "c0", ("q0", "again")),
            Row("rag/79", "rag", ("rag 79",)),
        ),
    ],
)
def test_rows_of_the_field(hub: Hub, name: str, count: int, first: Row, last: Row) -> None:
    suite = suites.load(name)
    assert (suite.name, len(suite.rows)) == (name, count)
    assert len({row.id for row in suite.rows}) == count
    assert (suite.rows[0], suite.rows[-1]) == (first, last)


def test_what_was_fetched_once_needs_no_network(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    first = suites.load("spec-bench")
    assert hub.asked == ["data/mt_bench/question.jsonl", *(f"{name}.jsonl" for name in PARTS)]
    monkeypatch.setattr("ladecli.specs.hub.hub_answers", lambda: pytest.fail("asked the hub"))
    assert suites.load("spec-bench", offline=True) == suites.load("spec-bench") == first
    assert len(suites.load("mt-bench").rows) == 80
    assert len(hub.asked) == 6


@pytest.mark.parametrize("progress", [False, True])
def test_bars_are_shown_where_they_are_wanted(hub: Hub, progress: bool) -> None:
    assert not are_progress_bars_disabled()
    suites.load("gsm8k", progress=progress)
    assert hub.bars == [progress]
    assert not are_progress_bars_disabled()


@pytest.mark.parametrize(
    ("cause", "why"),
    [
        ("unreachable", "the hub cannot be reached"),
        ("variable", "the hub cannot be reached"),
        ("flag", "--offline forbids to fetch it"),
    ],
)
def test_no_network(hub: Hub, monkeypatch: pytest.MonkeyPatch, cause: str, why: str) -> None:
    monkeypatch.setattr("ladecli.specs.hub.hub_answers", lambda: cause != "unreachable")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", cause == "variable")
    with pytest.raises(LadeError) as error:
        suites.load("gsm8k", offline=cause == "flag")
    assert str(error.value) == f"the suite gsm8k is not on this machine, and {why}; {FIX}"
    assert hub.asked == []


FAILURES = {
    "gone": (errors.RepositoryNotFoundError("404 gone\nlong", response=ANSWER), "404 gone"),
    "network lost": (errors.LocalEntryNotFoundError("cannot\nlong"), "cannot be reached"),
    "halfway": (ReadTimeout(), "cannot be fetched: ReadTimeout"),
    "disk": (OSError(errno.ENOSPC, "No space left on device"), "No space left on device"),
}


@pytest.mark.parametrize("case", FAILURES)
def test_what_the_hub_refuses_is_one_line_with_the_fix(hub: Hub, case: str) -> None:
    hub.failure, reason = FAILURES[case]
    with pytest.raises(LadeError) as error:
        suites.load("gsm8k")
    message = str(error.value)
    assert reason in message
    assert message.endswith(FIX)
    assert ("gsm8k" in message, "\n" in message) == (True, False)
    assert not are_progress_bars_disabled()


def test_a_suite_that_was_changed(hub: Hub) -> None:
    hub.files[GSM8K].pop()
    with pytest.raises(LadeError, match="gsm8k was changed on the hub"):
        suites.load("gsm8k")
    hub.files[HUMANEVAL][3] = {"text": "def"}
    with pytest.raises(LadeError, match="humaneval was changed on the hub"):
        suites.load("humaneval")
