"""Remembered answers make later runs faster, change no text, and tell no question."""

from __future__ import annotations

import os
import re
from array import array
from pathlib import Path
from typing import Any

import pytest

from ladecli.models.load import load
from ladecli.options.answer import ChatRequest
from ladecli.session.answer_memory import MAX_BYTES, MAX_RECALLED, MIN_ANSWER, AnswerMemory
from ladecli.session.session import Session
from tests.support.files import file_sizes
from tests.support.hub import plan
from tests.support.server import QUESTION, Server

QUESTIONS = ("What is lookahead decoding?", "What is the pool?", "Is it exact?")
FILES = "lade/answers/*"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path


def memory_of(session: Session, said: list[str] | None = None, **options: Any) -> AnswerMemory:
    """Return the memory of a new program."""
    said = [] if said is None else said
    return AnswerMemory(session, ChatRequest(**{"model": "tiny"} | options), said.append)


def recalled(session: Session, prompt: list[int], **options: Any) -> list[list[int]]:
    """Return the answers that a new program recalls for a prompt."""
    session.start_over()
    memory_of(session, **options).recall(prompt)
    answers: list[list[int]] = [[]]
    for token in session.drafts.context.corpus.tokens:
        answers.append([]) if token < 0 else answers[-1].append(token)
    return answers[:-1]


def answer(first: int, length: int = 20) -> list[int]:
    return [(first + number) % 250 for number in range(length)]


def steps_of(talk: Any) -> list[int]:
    return [int(steps) for steps in re.findall(r"tokens? in (\d+) steps?", talk.err)]


@pytest.mark.parametrize("options", ["-n 60", "-n 60 -t 0.8 --seed 3"])
def test_a_second_run_repeats_answers_in_fewer_steps(talk: Any, home: Path, options: str) -> None:
    first, second = (talk(*QUESTIONS, options=options, home=home) for _ in range(2))
    without = talk(*QUESTIONS, options=f"{options} --no-memory", home=home / "other")
    assert first.said == second.said == without.said
    assert sum(steps_of(second)) < sum(steps_of(first)) / 2
    assert steps_of(without) == steps_of(first)
    assert not [*(home / "other").glob(FILES)], "--no-memory writes nothing"
    assert first.err.count("--no-memory keeps none") == 1
    assert "--no-memory" not in second.err


def test_a_servers_answers_are_remembered(tmp_path: Path) -> None:
    body, answers = {"messages": QUESTION, "max_tokens": 60}, []
    for options in ((), (), ("--no-memory",)):
        with Server(tmp_path, *options) as server:
            answers.append(server.ask("/v1/chat/completions", body)[1])
    texts = [answer["choices"][0]["message"]["content"] for answer in answers]
    first, second, without = (answer["lade"]["steps"] for answer in answers)
    assert texts == texts[:1] * 3
    assert second < first / 2
    assert without == first


def test_the_file_is_private_and_has_no_questions(talk: Any, home: Path) -> None:
    done = talk("Lookahead decoding is what? My password: swordfish.", options="-n 40", home=home)
    (path,) = home.glob(FILES)
    assert path.stat().st_mode & 0o777 == 0o600
    assert str(path) in done.err
    ids = [token for token in array("i", path.read_bytes()) if token >= 0]
    kept = load(plan("demo")).tokenizer.decode(ids, skip_special_tokens=True)
    assert kept.strip() == done.said[1].strip()


def test_other_commands_write_no_answers(lade: Any, home: Path) -> None:
    lade("generate", "-p", QUESTIONS[0], "-n", "40")
    assert not [*home.glob(FILES)]


def test_the_most_similar_answers_come_first(session: Session, home: Path) -> None:
    memory = memory_of(session)
    for first in (0, 50, 100, 50):  # the same once more is kept once
        memory.keep(answer(first))
    memory.keep([7] * (MIN_ANSWER - 1))
    assert [ids[0] for ids in recalled(session, answer(60, 5))] == [50, 100, 0]


def test_drafts_learn_within_bounds(session: Session, home: Path) -> None:
    memory = memory_of(session)
    for number in range(6):
        memory.keep([number] * (MAX_RECALLED // 4))
    assert [ids[0] for ids in recalled(session, [2])] == [2, 5, 4, 3]
    memory.keep([1] * 2 * MAX_RECALLED)
    assert recalled(session, [1]) == [[1] * MAX_RECALLED]


def test_the_oldest_answers_make_room(session: Session, home: Path) -> None:
    memory = memory_of(session)
    for number in range(6):
        memory.keep([number] * (MAX_BYTES // 16))
    (path,) = home.glob(FILES)
    assert path.stat().st_size <= MAX_BYTES
    assert recalled(session, [2])[0][0] == 5, "that of 2 is gone"
    assert recalled(session, [3])[0][0] == 3


@pytest.mark.parametrize("other", [{"model": "other"}, {"adapter": ["one"]}, {"memory": False}])
def test_answers_of_another_model_are_not_used(session: Session, home: Path, other: Any) -> None:
    memory_of(session).keep(answer(0))
    assert recalled(session, answer(0)) == [answer(0)]
    assert recalled(session, answer(0), **other) == []


def test_answers_of_another_tokenizer_are_not_used(session: Session, home: Path) -> None:
    memory_of(session).keep(answer(0))
    other = Session(load(plan("demo")))
    assert recalled(other, answer(0)) == []


@pytest.mark.parametrize("content", [b"", b"abc", b"hello, world", os.urandom(4096), b"\xff" * 9])
def test_a_damaged_file_is_replaced(session: Session, home: Path, content: bytes) -> None:
    memory_of(session).keep(answer(0))
    (path,) = home.glob(FILES)
    path.write_bytes(content)
    assert [ids for ids in recalled(session, answer(0)) if ids] == []
    memory_of(session).keep(answer(7))
    assert answer(7) in recalled(session, answer(0))
    path.write_bytes(path.read_bytes() + array("i", answer(9)).tobytes()[:-2])  # cut short
    assert recalled(session, answer(0))[0] == answer(7)


def test_two_programs_keep_their_answers_beside_each_other(session: Session, home: Path) -> None:
    one, two = memory_of(session), memory_of(session)
    one.recall([1])
    two.recall([1])
    for number in range(3):
        one.keep(answer(number))
        two.keep(answer(10 + number))
    assert len(recalled(session, [1])) == 6


def test_a_file_that_cannot_be_written_is_reported(session: Session, home: Path) -> None:
    said: list[str] = []
    memory = memory_of(session, said)
    with file_sizes(1):
        memory.keep(answer(0))
        memory.keep(answer(1))
    assert len(said) == 1
    assert said[0].startswith("answers are not remembered: ")
