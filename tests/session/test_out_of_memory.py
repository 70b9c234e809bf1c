"""Running out of memory for users: one line, the text so far, and the next question."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from ladecli.decoder.model.forward import StepInputs
from tests.support.oracle import change_decoders, run_out

pytestmark = pytest.mark.slow

OUT = r"out of memory after \d+ tokens of context; a smaller --max-context, --quantize 4bit or a"
SQUEEZED = r"out of memory: steps have at most [1-5] tokens? now; a smaller --budget avoids this"
OPTIONS = ("generate", "-p", "def ", "-n", "40", "--ignore-eos", "--budget", "16", "-W", "2")
# The window is in every step, at any cost.
OPTIONS += ("--sources", "trajectory")
QUESTIONS = ("What is lookahead decoding?", "What is the pool?")


def tighten(monkeypatch: pytest.MonkeyPatch, fails: Callable[[StepInputs], bool]) -> None:
    """Let forwards run out of memory in sessions that are created from now on."""
    change_decoders(monkeypatch, lambda decoder: run_out(decoder, fails))


def after(forwards: int) -> Callable[[StepInputs], bool]:
    """Return a condition under which every forward fails from some point on."""
    left = [False] * forwards
    return lambda _: not left or left.pop()


def test_narrower_steps_are_reported_once_and_change_nothing(lade: Any, monkeypatch: Any) -> None:
    expected = lade(*OPTIONS).out
    tighten(monkeypatch, lambda step: len(step.tokens) > 5)
    done = lade(*OPTIONS)
    assert (done.code, done.out) == (0, expected)
    assert re.match(rf"lade: {SQUEEZED}\n", done.err)
    assert done.err.count("out of memory") == 1
    assert lade(*OPTIONS, "--quiet").err == ""


def test_an_answer_that_memory_cuts_short_is_kept(lade: Any, monkeypatch: Any) -> None:
    expected = lade(*OPTIONS).out
    tighten(monkeypatch, after(9))
    done = lade(*OPTIONS)
    assert (done.code, len(done.out) > 9) == (1, True)
    assert expected.startswith(done.out.rstrip("\n"))
    assert re.match(f"lade: {OUT} smaller model helps\n", done.err)
    assert " steps" in done.err, "the statistics are shown all the same"
    tighten(monkeypatch, after(9))
    answer = lade(*OPTIONS, "--json").json(1)
    assert answer["finish_reason"] == "memory"
    assert 0 < answer["usage"]["completion_tokens"] < 40
    assert expected.startswith(answer["text"])
    tighten(monkeypatch, after(0))
    line = lade(*OPTIONS, "--quiet").refused(code=1)
    assert re.fullmatch(f"{OUT} smaller model helps\n", line), "--quiet hides no error"


def test_the_next_prompt_is_answered(lade: Any, monkeypatch: Any, rows_file: Any) -> None:
    rows = rows_file({"prompt": "def read(path):\n" * 20}, {"prompt": "def "})
    tighten(monkeypatch, lambda step: int(step.positions.max()) > 60)
    done = lade("generate", "-f", rows, "--raw", "-n", "20", "--ignore-eos", "--json")
    assert [row["finish_reason"] for row in done.rows(1)] == ["memory", "length"]
    assert len(re.findall(OUT, done.err)) == 1


def test_a_reply_that_memory_cuts_short_is_kept_in_its_chat(talk: Any, monkeypatch: Any) -> None:
    whole = talk(QUESTIONS[0], options="-n 30").said[1]
    left = [False] * 9
    tighten(monkeypatch, lambda _: not left or left.pop())
    chat = talk(QUESTIONS[0], lambda: left.extend([False] * 99), QUESTIONS[1], options="-n 30")
    assert chat.said[1]
    assert whole.startswith(chat.said[1])
    messages = chat.conversation.messages
    assert [message.interrupted for message in messages] == [False, True, False, False]
    assert re.match(OUT, chat.notices[0])


def test_a_question_that_memory_leaves_unanswered_comes_back(talk: Any, monkeypatch: Any) -> None:
    tighten(monkeypatch, after(0))
    chat = talk(QUESTIONS[0], "/undo")
    assert f"{QUESTIONS[0]}\n> " in chat.err
    assert re.match(OUT, chat.notices[0])
    assert "no message yet" in chat.notices[1]
    assert "the answer is empty" not in chat.err
