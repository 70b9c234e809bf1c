"""Running out of memory as a user sees it: one line, the text so far, and the next question."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from ladecli import models
from ladecli.chat import loop
from ladecli.commands.cli import entry
from ladecli.decoder.decoder import Decoder
from ladecli.decoder.events import StepNarrowed
from ladecli.decoder.layout import StepLayout
from ladecli.decoder.load import load_decoder
from ladecli.events import Ended
from ladecli.options.answer import ChatRequest
from ladecli.repl.session import Chat
from ladecli.session.session import Session
from ladecli.trace.format import read_trace
from ladecli.view.terminal import Terminal

from .test_chat import QUESTIONS, Script, said

pytestmark = pytest.mark.slow

OUT = r"out of memory after \d+ tokens of context; a smaller --max-context, --quantize 4bit or a"
SQUEEZED = r"out of memory: steps have at most [1-5] tokens? now; a smaller --budget avoids this"
OPTIONS = ("generate", "-p", "def ", "-n", "40", "--ignore-eos", "--budget", "16", "-W", "2")
# The window is in every step, whatever that costs.
OPTIONS += ("--sources", "trajectory")

Lade = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def loaded() -> models.LoadedModel:
    return models.load("demo")


@pytest.fixture
def lade(capsys: pytest.CaptureFixture[str]) -> Lade:
    return lambda *arguments: (entry([*arguments]), *capsys.readouterr())


def starve(decoder: Decoder, fails: Callable[[StepLayout], bool]) -> Decoder:
    """Let some forwards of a decoder run out of memory."""
    run = decoder.runner.run

    def short(layout: StepLayout) -> Any:
        if fails(layout):
            raise torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate 2.00 GiB")
        return run(layout)

    vars(decoder.runner)["run"] = short
    return decoder


def tighten(monkeypatch: pytest.MonkeyPatch, fails: Callable[[StepLayout], bool]) -> None:
    """The same for sessions that are made from now on."""

    def load(*args: Any, **options: Any) -> Decoder:
        return starve(load_decoder(*args, **options), fails)

    monkeypatch.setattr("ladecli.session.session.load_decoder", load)


def after(forwards: int) -> Callable[[StepLayout], bool]:
    """From then on nothing runs any more."""
    calls = iter(range(10**6))
    return lambda _: next(calls) >= forwards


# lade generate


def test_narrower_steps_are_reported_once_and_change_nothing(
    lade: Lade, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, expected, _ = lade(*OPTIONS)
    tighten(monkeypatch, lambda layout: len(layout.tokens) > 5)
    code, out, err = lade(*OPTIONS)
    assert (code, out) == (0, expected)
    assert re.match(rf"lade: {SQUEEZED}\n", err)
    assert err.count("out of memory") == 1
    assert lade(*OPTIONS, "--quiet")[2] == ""


def test_an_answer_that_memory_cuts_short_is_kept(
    lade: Lade, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, expected, _ = lade(*OPTIONS)
    tighten(monkeypatch, after(9))
    code, out, err = lade(*OPTIONS)
    assert code == 1
    assert len(out) > 9
    assert expected.startswith(out.rstrip("\n"))
    assert re.match(f"lade: {OUT} smaller model helps\n", err)
    assert " steps" in err, "the statistics are shown all the same"
    tighten(monkeypatch, after(9))
    answer = json.loads(lade(*OPTIONS, "--json")[1])
    assert answer["finish_reason"] == "memory"
    assert 0 < answer["usage"]["completion_tokens"] < 40
    assert expected.startswith(answer["text"])
    tighten(monkeypatch, after(0))
    code, out, err = lade(*OPTIONS, "--quiet")
    assert (code, out) == (1, "")
    assert re.fullmatch(f"lade: {OUT} smaller model helps\n", err), "--quiet hides no error"


def test_the_next_prompt_is_answered(
    lade: Lade, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, text in (("long", "def read(path):\n" * 20), ("short", "def ")):
        (tmp_path / name).write_text(text)
    tighten(monkeypatch, lambda layout: max(layout.positions) > 60)
    files = [part for name in ("long", "short") for part in ("-f", str(tmp_path / name))]
    code, out, err = lade("generate", *files, "-n", "20", "--ignore-eos", "--json")
    assert code == 1
    assert [json.loads(line)["finish_reason"] for line in out.splitlines()] == ["memory", "length"]
    assert len(re.findall(OUT, err)) == 1


def test_a_trace_holds_what_happened(
    lade: Lade, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    narrow, full = 5, 12
    tighten(monkeypatch, lambda x: len(x.tokens) > narrow or x.positions[0] > full)
    files = {name: tmp_path / f"x.{name}" for name in ("trace", "svg", "html")}
    code, out, _ = lade(*OPTIONS, *(part for n, f in files.items() for part in (f"--{n}", str(f))))
    assert code == 1
    events = read_trace(files["trace"]).events
    assert any(isinstance(event, StepNarrowed) for event in events)
    assert isinstance(events[-1], Ended)
    assert events[-1].reason == "memory"
    assert lade("replay", str(files["trace"]), "--speed", "inf")[:2] == (0, out)
    assert lade("replay", str(files["trace"]), "--step")[0] == 0
    assert all(file.stat().st_size > 500 for file in files.values())


# lade chat


@pytest.fixture
def chat_with(loaded: models.LoadedModel) -> Callable[..., Chat]:
    def make(*lines: str) -> Chat:
        reader: Any = Script(*lines)
        request = ChatRequest(max_new_tokens=30, budget=16, window=2)
        return Chat(Session(loaded), request, Terminal("never"), lambda _: reader)

    return make


def test_a_reply_that_memory_cuts_short_is_kept_and_the_chat_goes_on(
    chat_with: Callable[..., Chat],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    undisturbed = chat_with(QUESTIONS[0])
    loop(undisturbed)
    capsys.readouterr()
    chat = chat_with(QUESTIONS[0], QUESTIONS[1])
    room = len(chat.encode(chat.conversation.asked(QUESTIONS[0]))) + 8

    def short(layout: StepLayout) -> bool:
        return not said(chat) and max(layout.positions) > room

    starve(chat.session.decoder, short)
    loop(chat)
    first = said(chat)[1]
    assert first
    assert said(undisturbed)[1].startswith(first)
    assert [message.interrupted for message in chat.conversation.messages][:2] == [False, True]
    assert re.search(f"lade: {OUT}", capsys.readouterr().err)
    assert len(said(chat)) == 4, "the next question is answered"


def test_a_question_that_memory_leaves_unanswered_comes_back(
    chat_with: Callable[..., Chat],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    chat = chat_with(QUESTIONS[0], "/stats")
    starve(chat.session.decoder, after(0))
    loop(chat)
    assert said(chat) == []
    reader: Any = chat.reader
    assert QUESTIONS[0] in reader.drafts
    err = capsys.readouterr().err
    assert "the reply is empty" not in err
    assert re.search(f"lade: {OUT}", err)
